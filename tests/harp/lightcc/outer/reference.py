"""The methods of harp.lightcc.outer as their papers write them, in numpy, all islands in one loop.

Each island minimises half of the squared distance of weights * parameters from targets, and draws
new targets in each step; the inner optimizer is plain SGD or, for momentum, torch's.
"""

import numpy as np

SHAPES = {"first": (5, 7), "second": (40,), "third": (3, 4), "fourth": (2, 9)}
INNER = 0.05


def draw(island, step, elements):
    """Weights and targets of an island's step, float64, counted from 1."""
    random = np.random.default_rng([island, step])
    return random.uniform(0.5, 1.5, elements), random.normal(size=elements)


def start(elements):
    return np.random.default_rng(7).normal(size=elements).astype(np.float32).astype(np.float64)


def gradient(parameters, weights, targets):
    return weights * (weights * parameters - targets)


def inner_step(parameters, island, step, rate=INNER):
    return parameters - rate * gradient(parameters, *draw(island, step, len(parameters)))


def data_parallel(islands, steps, elements, rate):
    """Result of synchronous SGD."""
    parameters = start(elements)
    for step in range(1, steps + 1):
        parameters = parameters - rate * np.mean(
            [gradient(parameters, *draw(i, step, elements)) for i in range(islands)], axis=0)
    return parameters


def local_sgd(islands, steps, elements, every, rate=INNER):
    """Islands' parameters, averaged after each round."""
    own = [start(elements) for _ in range(islands)]
    for step in range(1, steps + 1):
        own = [inner_step(one, i, step, rate) for i, one in enumerate(own)]
        if step % every == 0:
            own = [np.mean(own, axis=0)] * islands
    return own


def diloco(islands, steps, elements, every, lr, momentum, rate=INNER):
    """Nesterov's step on the mean difference; all islands' parameters."""
    anchor, velocity = start(elements), np.zeros(elements)
    own = [anchor] * islands
    for step in range(1, steps + 1):
        own = [inner_step(one, i, step, rate) for i, one in enumerate(own)]
        if step % every == 0:
            mean = np.mean([anchor - one for one in own], axis=0)
            velocity = momentum * velocity + mean
            anchor = anchor - lr * (mean + momentum * velocity)
            own = [anchor] * islands
    return own


def streaming(islands, steps, parts, every, delay, local_share, lr, momentum):
    """Slices ``parts``, the i-th sent (i + 1) * every / len(parts) steps into each round."""
    elements = parts[-1].stop
    anchor, velocity = start(elements), np.zeros(elements)
    own, sent = [anchor.copy() for _ in range(islands)], {}
    for step in range(1, steps + 1):
        own = [inner_step(one, i, step) for i, one in enumerate(own)]
        for number, part in enumerate(parts):
            offset = (number + 1) * every // len(parts)
            if step >= offset and (step - offset) % every == 0:
                sent[step + delay, number] = np.mean([anchor[part] - one[part] for one in own], 0)
        for number, part in enumerate(parts):
            if (step, number) in sent:
                mean = sent.pop((step, number))
                velocity[part] = momentum * velocity[part] + mean
                anchor[part] -= lr * (mean + momentum * velocity[part])
                for one in own:
                    one[part] = local_share * one[part] + (1 - local_share) * anchor[part]
    return own


def sparseloco(islands, steps, elements, every, lr, decay, keep, chunk):
    """The largest ``keep`` of each chunk, values as they are; a mean over those who sent it."""
    anchor = start(elements)
    own, kept = [anchor] * islands, [np.zeros(elements)] * islands
    for step in range(1, steps + 1):
        own = [inner_step(one, i, step) for i, one in enumerate(own)]
        if step % every == 0:
            total, senders = np.zeros(elements), np.zeros(elements)
            for i, one in enumerate(own):
                error = decay * kept[i] + anchor - one
                sent = np.zeros(elements)
                for first in range(0, elements, chunk):
                    part = error[first:first + chunk]
                    largest = first + np.argsort(-np.abs(part), kind="stable")[:keep]
                    sent[largest] = error[largest]
                    senders[largest] += 1
                kept[i] = error - sent
                total += sent
            anchor = anchor - lr * total / np.maximum(senders, 1)
            own = [anchor] * islands
    return own, kept
