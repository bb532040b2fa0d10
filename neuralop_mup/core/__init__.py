"""The theory and what it needs: a model is read once into a plan, and the plan is applied to its weights.

In the order in which they build on one another: ``rules`` (the whole theory), ``infshape`` (mup's mechanism), ``layers`` and
``adapters`` (what a layer's parameters are), ``reading`` (of a model), ``arguments`` and ``parts`` (what a model keeps of
itself, and what it is compared with), ``growth`` (what grows), ``planning`` and ``plan``, ``plan_state`` (the plan in a
state dict), ``fresh`` (weights as neuralop draws them), ``parametrize`` and ``initialize`` (such weights drawn). ``depth``
counts Fourier layers, and ``unwrap`` sees a model through what a training script wraps it in.
"""
