"""The launcher of a run: it starts a learner's ranks and inference servers, watches them, and ends them.

    tamis train --- lines of JSON ---> `__main__`      one thread for each gang or server (`group`)
                                          |            places from the machine (`local`) or from Ray (`on_ray`)
                                          v
                                       `agent`         one for each place: starts processes there, ends with its input

Nothing outlives the run. When the launcher's input ends, it ends what it started. When the launcher is killed, the
inputs of its agents end, and they end what they started.
"""
