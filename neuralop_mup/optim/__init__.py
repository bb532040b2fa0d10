"""Param groups and optimizers that follow a model's plan.

``resolved_model`` reads a parametrized model, ``groups`` makes param groups and the usual optimizers from it,
``learning_rate`` computes the rate of each step, ``schedule`` ends a training, ``checks`` compares an optimizer with the
plan, ``musoap`` is MuSOAP.
"""
