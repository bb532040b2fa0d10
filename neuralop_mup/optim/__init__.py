"""Param groups and optimizers that follow a model's plan.

``resolved_model`` reads a parametrized model, and ``groups`` builds param groups and the common optimizers from it.
``learning_rate`` computes the learning rate of each step, and ``schedule`` lowers it at the end of training. ``checks``
compares an optimizer with the plan. ``musoap`` contains the MuSOAP optimizer.
"""
