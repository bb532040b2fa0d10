"""Compute a model's plan from the rules, and apply it to the weights.

Each module only imports modules that come before it in this list: ``rules`` (formulas for multipliers), ``infshape``
(interface to mup), ``layers`` (descriptions of layers), ``describe_model``, ``arguments``, ``build_models`` and ``rebuild``
(building a model at other sizes), ``width_dims`` (inferring which dimensions grow), ``plan``, ``plan_warnings``,
``make_plan``, ``state_dict_hooks``, ``check_init``, ``parametrize``, ``initialize``. ``unwrap`` returns the model inside
wrappers.
"""
