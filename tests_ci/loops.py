"""Training loops of torch, Lightning and accelerate: ``python loops.py FOLDER NAME …`` resumes them.

Each trains for ``UNTIL`` epochs, saves a checkpoint as its framework does, and resumes from it. Two batches make a step,
gradients are clipped, and the learning rate follows a warm-up and a cosine.
"""

import sys
from functools import partial
from pathlib import Path

import torch
from neuralop.losses import LpLoss
from neuralop.models import FNO
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

import neuralop_mup as nm

UNTIL, EPOCHS, BATCHES = 3, 6, 4
STEPS = EPOCHS * BATCHES // 2


def loader():
    x = torch.randn(16, 1, 32, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(x, x.roll(3, -1)), batch_size=4)


def model_of(seed):
    torch.manual_seed(seed)
    return FNO((8,), 1, 1, 16, n_layers=2)


def schedule_of(optimizer, steps):
    warm_up = LinearLR(optimizer, 0.1, total_iters=2)
    return SequentialLR(optimizer, [warm_up, CosineAnnealingLR(optimizer, steps - 2)], milestones=[2])


def plain(folder, epochs, resume, seed, compiled=False, bf16=False):
    """A loop with an average of the weights."""
    model = nm.parametrize(model_of(seed))
    optimizer = nm.MuSOAP(model, steps=STEPS)
    schedule = schedule_of(optimizer, STEPS)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    called = torch.compile(model, backend="aot_eager") if compiled else model
    parts = {"model": called, "average": average, "optimizer": optimizer, "schedule": schedule}
    if resume:
        saved = torch.load(folder / "all.pt", weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(saved[name])
    for _ in range(UNTIL if resume else 0, epochs):
        for i, (x, y) in enumerate(loader()):
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = LpLoss(d=1)(called(x).float(), y)
            loss.backward()
            if i % 2:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
                average.update_parameters(model)
    torch.save({name: part.state_dict() for name, part in parts.items()}, folder / "all.pt")
    return [*model.parameters(), *average.parameters()]


def lightning(folder, epochs, resume, seed, whole=False, precision="32-true"):
    """Lightning's Trainer; with ``whole`` the module around the FNO is parametrized."""
    from lightning import LightningModule, Trainer
    from lightning.pytorch.callbacks import EMAWeightAveraging, LearningRateMonitor, ModelCheckpoint
    from lightning.pytorch.loggers import CSVLogger

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.fno = model_of(seed)
            nm.parametrize(self if whole else self.fno)

        def training_step(self, batch):
            return LpLoss(d=1)(self.fno(batch[0]).float(), batch[1])

        def configure_optimizers(self):
            optimizer = nm.MuSOAP(self if whole else self.fno, steps=STEPS)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule_of(optimizer, STEPS), "interval": "step"}}

    # Saved during fit: at its end the average replaces the model.
    saves = ModelCheckpoint(folder, "after_{epoch}", save_top_k=-1)
    trainer = Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        precision=precision,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        callbacks=[LearningRateMonitor(), EMAWeightAveraging(decay=0.9), saves],
        logger=CSVLogger(folder),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Module()
    trainer.fit(module, loader(), ckpt_path=folder / f"after_epoch={UNTIL - 1}.ckpt" if resume else None)
    return list(module.parameters())


def accelerate(folder, epochs, resume, seed, precision="no"):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(True)  # a process has one state, with one precision
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, mixed_precision=precision)
    model = nm.parametrize(model_of(seed))
    optimizer = nm.MuSOAP(model, steps=STEPS)
    parts = accelerator.prepare(model, optimizer, loader(), schedule_of(optimizer, STEPS))
    called, optimizer, batches, schedule = parts
    if resume:
        accelerator.load_state(folder / "state")
    for _ in range(UNTIL if resume else 0, epochs):
        for x, y in batches:
            with accelerator.accumulate(called):
                accelerator.backward(LpLoss(d=1)(called(x).float(), y))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(called.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
    accelerator.save_state(folder / "state")
    return list(accelerator.unwrap_model(called).parameters())


LOOPS = {  # neuralop's Trainer is in tests/test_checkpoint.py
    "plain": plain,
    "compiled": partial(plain, compiled=True),
    "bf16": partial(plain, bf16=True),
    "lightning": lightning,
    "lightning_whole": partial(lightning, whole=True),
    "lightning_bf16": partial(lightning, precision="bf16-mixed"),
    "accelerate": accelerate,
    "accelerate_bf16": partial(accelerate, precision="bf16"),
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[2:]:
        folder = Path(sys.argv[1], name)
        torch.save([p.detach() for p in LOOPS[name](folder, EPOCHS, True, 1)], folder / "weights.pt")
