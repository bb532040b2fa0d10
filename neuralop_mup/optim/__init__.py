"""Optimizers that follow a model's plan.

A model is read once into a ``binding``; ``groups`` are what optimizers are made of: ``adam`` has the usual three, ``matrix``
the one of the second order. ``on_plan`` says whether an optimizer's learning rates are the plan's, and warns of plain ones;
``follow`` holds an optimizer to the plan while it trains: to the ``modes`` that are active, and to the plan's ratios.
"""
