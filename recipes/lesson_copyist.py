"""Trains the lesson's encoder and decoder to copy, and writes src/uwaga/lessons/copyist.safetensors.

    python recipes/lesson_copyist.py

Sentences are 1 to 12 random signs of 12; the decoder shall write what was read. The loss is the cross-entropy of the next sign,
by Adam. A copy that the model makes from its own words is right or wrong as a whole; the program prints the share of right ones
over sentences that it has not been trained on.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy

import uwaga.lessons.steps.trained as lesson

_STEPS, _BATCH, _RATE, _SEED = 4_000, 64, 3e-3, 0
_OUTPUT = Path(lesson.__file__).parents[1] / "copyist.safetensors"


def main() -> None:
    torch.manual_seed(_SEED)
    model = lesson.Copyist()
    optimizer = torch.optim.Adam(model.parameters(), lr=_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, total_steps=_STEPS)
    for step in range(_STEPS):
        signs = torch.randint(1, lesson.SIGNS + 1, (_BATCH, int(torch.randint(1, lesson.SIGNS + 1, ()))))
        before = torch.cat((torch.zeros(_BATCH, 1, dtype=torch.long), signs[:, :-1]), dim=1)
        loss = cross_entropy(model.write(before, model.read(signs)).flatten(0, 1), signs.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 500 == 0 or step == _STEPS - 1:
            sys.stdout.write(f"step {step}: loss {float(loss.detach()):.4f}\n")
    save_file({name: each.contiguous() for name, each in model.state_dict().items()}, _OUTPUT)
    lesson.trained.cache_clear()
    right, weight, most = 0, 0.0, 500
    for number in range(most):
        generator = torch.Generator().manual_seed(10_000 + number)
        length = int(torch.randint(1, lesson.SIGNS + 1, (), generator=generator))
        words = [str(int(each)) for each in torch.randint(1, lesson.SIGNS + 1, (length,), generator=generator)]
        copied = lesson.copy(words)
        right += list(copied.written) == words
        weight += float(copied.weights_NN.diagonal().mean()) / most
    sys.stdout.write(
        f"{right} of {most} copies are right; {weight:.3f} of cross-attention on the word that comes next\n"
    )


if __name__ == "__main__":
    main()
