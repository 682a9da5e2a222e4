"""Steps of sampling as CUDA graphs: one for each width and kind of draw.

A step of a small model is hundreds of kernels of some microseconds, and a GPU would wait for the host to launch each. A
graph launches all of them at once. It reads and writes fixed places in memory, so the inputs of other rows are copied
into those of the rows that it was captured with. The first step of a width runs as it is, which also prepares what
kernels need; the second one is captured. All graphs share their temporary memory, because nothing in it is read after a
replay: what a step leaves is in the columns and in the cache.
"""

import torch

from .messages import first_line


class StepGraphs:
    """Runs a step by its graph. If a model cannot be captured, `refused` has the reason, and steps run as they are."""

    def __init__(self, step):
        self.refused = None
        self._step, self._places = step, None
        self.forget()

    def forget(self):
        """Drops all graphs, because memory that they name has moved. Columns must be loaded again."""
        self._columns, self._graphs, self._pool = {}, {}, None

    def check(self, parameters):
        """Drops all graphs if one of these parameters is elsewhere in memory than before. Returns whether one is."""
        places = tuple(one.data_ptr() for one in parameters)
        have_moved = self._places not in (None, places)
        if have_moved:
            self.forget()
        self._places = places
        return have_moved

    def load(self, columns):
        """The columns to compute with, whose content is that of the given ones."""
        held = self._columns.setdefault(columns.kind, columns)
        if held is not columns:
            held.copy_(columns)
        return held

    def advance(self, columns):
        """One step of columns that `load` has returned."""
        kind = columns.kind
        if self.refused is not None or kind not in self._graphs:
            self._graphs[kind] = None
            self._step(columns)
            return
        if self._graphs[kind] is None:
            longest = columns.longest
            graph = torch.cuda.CUDAGraph()
            try:
                self._pool = self._pool or torch.cuda.graph_pool_handle()
                with torch.cuda.graph(graph, pool=self._pool):
                    self._step(columns)
            except RuntimeError as error:
                self.refused = first_line(error)
                columns.longest = longest
                self._step(columns)
                return
            columns.longest = longest
            self._graphs[kind] = graph
        self._graphs[kind].replay()
        columns.longest += 1
