"""Optimizers that follow a model's plan.

A model is read once into a ``binding``; ``groups`` are what optimizers are made of, with the three usual ones; ``musoap`` is
the one of the second order. ``on_plan`` says whether an optimizer's learning rates are the plan's, holds them there while it
trains, and warns of plain ones.
"""
