"""``Trainer.train(resume_from_dir=…)`` fails for every FNO (neuraloperator 2.0.0, issue #558).

``torch.load`` reads weights alone by default since torch 2.6, and a model's ``state_dict()`` holds ``_metadata``, in which
the activation is a function. So the file that ``save_training_state`` writes cannot be read by ``load_training_state``.

A mend, in ``neuralop/training/training_state.py``, for files that one wrote oneself::

    -        model.load_state_dict(torch.load(save_pth.absolute().as_posix()))
    +        model.load_state_dict(torch.load(save_pth.absolute().as_posix(), weights_only=False))

and likewise three lines above it. A better one keeps ``_metadata`` in a file of its own, so that weights can be read by
``weights_only=True``.
"""

import pickle
import tempfile

import torch
from neuralop.models import FNO
from neuralop.training import Trainer
from neuralop.training.training_state import save_training_state

with tempfile.TemporaryDirectory() as folder:
    model = FNO((4,), in_channels=1, out_channels=1, hidden_channels=8)
    optimizer = torch.optim.Adam(model.parameters())
    save_training_state(folder, "model", model, optimizer, epoch=0)
    trainer = Trainer(model=model, n_epochs=1)
    trainer.optimizer, trainer.scheduler, trainer.regularizer, trainer.start_epoch = optimizer, None, None, 0
    try:
        trainer.resume_state_from_dir(folder)
    except pickle.UnpicklingError as error:
        print("The fault is there:", str(error).splitlines()[0])
    else:
        print("The fault is mended.")
