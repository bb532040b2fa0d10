"""The theory and what it needs: a model is read once into a plan, and the plan is applied to its weights.

In the order in which they build on one another: ``rules`` (the whole theory), ``infshape`` (mup's mechanism), ``layers`` and
``adapters`` (what a layer's parameters are), ``reading`` (of a model), ``parts`` (what can be built again), ``base``,
``growth`` (what grows), ``plan``, ``planning``, ``plan_state`` (the plan in a state dict), ``default_init`` (neuralop's own
weights: drawn, and recognised), ``parametrize`` and ``initialize``. ``unwrap`` sees a model through what a training script
wraps it in.
"""
