"""The theory, the plan of a model, and its application to the weights.

Each module imports only those before it: ``rules`` (the theory), ``infshape`` (mup's mechanism), ``layers`` (descriptions),
``describe_model``, ``arguments``, ``build_models`` and ``rebuild`` (a model at other sizes), ``width_dims`` (which
dimensions grow), ``plan``, ``plan_warnings``, ``make_plan``, ``state_dict_hooks``, ``check_init``, ``parametrize``,
``initialize``. ``unwrap`` finds the model inside wrappers.
"""
