"""Loops of the field with the two lines in them: ``python loops.py FOLDER NAME …`` goes on in a process of its own.

Each trains for ``UNTIL`` epochs, saves by its framework's own means, and goes on from what was saved. Two batches make a
step, gradients are clipped, a warm-up and a cosine lead the learning rate, at each step or at each epoch.
"""

import sys
from pathlib import Path

import torch
from neuralop.losses import LpLoss
from neuralop.models import FNO
from neuralop.training import Trainer
from neuralop.training.training_state import save_training_state
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
    """A loop of one's own, with an average of the weights; the rate follows steps."""
    model = nm.parametrize(model_of(seed))
    optimizer = nm.MuSOAP(model, steps=STEPS)
    schedule = schedule_of(optimizer, STEPS)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    called = torch.compile(model, backend="aot_eager") if compiled else model
    parts, start = {"model": called, "average": average, "optimizer": optimizer, "schedule": schedule}, 0
    if resume:
        saved = torch.load(folder / "all.pt", weights_only=True)
        start = saved.pop("epochs")
        for name, part in parts.items():
            part.load_state_dict(saved[name])
    for _ in range(start, epochs):
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
    torch.save({**{name: part.state_dict() for name, part in parts.items()}, "epochs": epochs}, folder / "all.pt")
    return [*model.parameters(), *average.parameters()]


def compiled(folder, epochs, resume, seed):
    return plain(folder, epochs, resume, seed, compiled=True)


def bf16(folder, epochs, resume, seed):
    return plain(folder, epochs, resume, seed, bf16=True)


def trainer(folder, epochs, resume, seed):
    """neuralop's; a step a batch, and a schedule that steps once an epoch."""
    model = nm.parametrize(model_of(seed))
    optimizer = nm.MuSOAP(model, steps=EPOCHS * BATCHES)
    schedule = schedule_of(optimizer, EPOCHS)
    train = Trainer(model=model, n_epochs=epochs)
    if resume:
        train.start_epoch = nm.load_checkpoint(folder, model, optimizer, schedule)
    samples = [{"x": x[0], "y": y[0]} for x, y in DataLoader(loader().dataset)]
    batches = DataLoader(samples, batch_size=4)
    train.train(batches, {"test": batches}, optimizer, schedule, training_loss=LpLoss(d=1), eval_losses={"l2": LpLoss(d=1)})
    save_training_state(folder, "model", model, optimizer, schedule, epoch=epochs - 1)
    return list(model.parameters())


def lightning(folder, epochs, resume, seed, whole=False, precision="32-true"):
    """Lightning's; the plan is the FNO's, or with ``whole`` that of the module around it."""
    from lightning import LightningModule
    from lightning import Trainer as Lightning
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

    # In the middle of fit: at its end the average takes the model's place.
    saves = ModelCheckpoint(folder, "after_{epoch}", save_top_k=-1)
    trainer = Lightning(
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


def lightning_whole(folder, epochs, resume, seed):
    return lightning(folder, epochs, resume, seed, whole=True)


def lightning_bf16(folder, epochs, resume, seed):
    return lightning(folder, epochs, resume, seed, precision="bf16-mixed")


def accelerate(folder, epochs, resume, seed, precision="no"):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(True)  # a process has one, of one precision
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


def accelerate_bf16(folder, epochs, resume, seed):
    return accelerate(folder, epochs, resume, seed, precision="bf16")


LOOPS = {
    loop.__name__: loop
    for loop in (
        plain,
        compiled,
        bf16,
        trainer,
        lightning,
        lightning_whole,
        lightning_bf16,
        accelerate,
        accelerate_bf16,
    )
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[2:]:
        folder = Path(sys.argv[1], name)
        torch.save([p.detach() for p in LOOPS[name](folder, EPOCHS, True, 1)], folder / "weights.pt")
