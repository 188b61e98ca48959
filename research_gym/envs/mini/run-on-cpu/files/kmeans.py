"""Lloyd's algorithm."""

import numpy as np

from backend import synchronise, to_device, to_host, xp


def distances(points, centres):
    """Squared Euclidean distances (points, centres)."""
    difference = points[:, None, :] - centres[None, :, :]
    return (difference * difference).sum(axis=2)


def start(points, clusters, seed):
    """k-means++, on the host: the same rows on every device."""
    random = np.random.RandomState(seed)
    rows = [random.randint(len(points))]
    while len(rows) < clusters:
        nearest = distances(points, points[rows]).min(axis=1)
        rows.append(int(np.searchsorted(np.cumsum(nearest), random.rand() * nearest.sum())))
    return points[rows]


def fit(points, clusters, seed, max_iterations=100):
    """Returns the cluster of each point, the inertia and the number of iterations until nothing changed."""
    centres = to_device(start(points, clusters, seed))
    points = to_device(points)
    assigned = xp.zeros(len(points), dtype=xp.int64) - 1
    for iteration in range(1, max_iterations + 1):
        nearest = distances(points, centres).argmin(axis=1)
        if bool((nearest == assigned).all()):
            break
        assigned = nearest
        centres = xp.stack([points[assigned == cluster].mean(axis=0) for cluster in range(clusters)])
    synchronise()
    inertia = float(distances(points, centres).min(axis=1).sum())
    return to_host(assigned), inertia, iteration
