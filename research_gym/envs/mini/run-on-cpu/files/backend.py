"""Arrays on the chosen device."""

import cupy as xp


def select(device):
    """Makes `device` the one that arrays are put on."""
    if device == "cuda":
        xp.cuda.Device(0).use()
    elif device != "cpu":
        raise ValueError("unknown device %r" % device)


def to_device(array):
    """Copies a numpy array to the device."""
    return xp.asarray(array)


def to_host(array):
    """Copies an array of the device to numpy."""
    return xp.asnumpy(array)


def synchronise():
    """Waits for the device."""
    xp.cuda.Stream.null.synchronize()
