"""``IncrementalFNOTrainer`` lowers the modes of a 1D FNO, and makes unequal axes equal (neuraloperator 2.0.0).

``SpectralConv.n_modes`` gives what is stored, n // 2 + 1 of the last axis, and its setter takes what a user counts, n.
The trainer reads the one and sets the other. In 1D 16 becomes 9, and then 5, 3, 2. Where axes differ it sets all of them to
the first one, and it changes the first layer alone.

A mend, in ``neuralop/training/incremental.py``: count axis by axis, set what a user counts, and all layers at once::

    -        incremental_modes = self.model.fno_blocks.convs[0].n_modes[0]
    -        max_modes = self.model.fno_blocks.convs[0].max_n_modes[0]
    +        conv = self.model.fno_blocks.convs[0]
    +        n_modes, max_modes = list(conv.n_modes), list(conv.max_n_modes)
    …
    -                if incremental_modes < max_modes:
    -                    incremental_modes += 1
    -        modes_list = tuple([incremental_modes] * self.ndim)
    -        self.model.fno_blocks.convs[0].n_modes = modes_list
    +                n_modes = [min(n + 1, most) for n, most in zip(n_modes, max_modes)]
    +        if not conv.complex_data:  # n // 2 + 1 are stored of n
    +            n_modes[-1] = 2 * (n_modes[-1] - 1)
    +        self.model.n_modes = tuple(n_modes)
"""

from neuralop.models import FNO
from neuralop.training import IncrementalFNOTrainer

model = FNO((16,), in_channels=1, out_channels=1, hidden_channels=8, max_n_modes=(32,))
trainer = IncrementalFNOTrainer(model=model, n_epochs=1, incremental_loss_gap=True)
stored = [model.fno_blocks.convs[0].n_modes[0]]
for loss in (1.0, 0.5, 0.2):  # falls fast, so that no mode is to be added
    trainer.incremental_update(loss)
    stored.append(model.fno_blocks.convs[0].n_modes[0])
print("The fault is there:" if len(set(stored)) > 1 else "The fault is mended:", "modes stored after each epoch", stored)
