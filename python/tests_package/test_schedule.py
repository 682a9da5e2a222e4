"""The scheduling machine: modes, snapshots at every event, errors, accounting."""

import math
import pickle
import random

import pytest
import tamis
from tamis.schedule import (
    Abort,
    Aborted,
    BeginStep,
    Cancelled,
    Continue,
    Dispatched,
    Draw,
    Failed,
    Finish,
    Judged,
    NextEpoch,
    Published,
    RoundComplete,
    Sampled,
    Scheduler,
    Scored,
    Screened,
    SkipStep,
    StepClosed,
    StepReady,
    Stop,
    Train,
    Trained,
)


def test_one_step_by_hand():
    scheduler = tamis.Scheduler(train_batch_size=1, n=2, filter=tamis.Filter("variance"))
    assert scheduler.handle(BeginStep()) == [Draw(step=1, round=1, num_prompts=1)]
    assert scheduler.handle(Dispatched([0])) == []
    assert scheduler.awaits(0) and scheduler.held() == [0]
    judged, complete, draw = scheduler.handle(Scored(0, [1.0, 1.0], num_tokens=9))
    assert judged == Judged(0, kept=False, reason="all_correct")
    assert isinstance(complete, RoundComplete) and "1 all correct" in complete.report["text"]
    assert draw == Draw(step=1, round=2, num_prompts=1)
    scheduler.handle(Dispatched([1]))
    judged, _, ready = scheduler.handle(Scored(1, [1.0, None], num_tokens=4))
    assert judged == Judged(1, kept=False, reason="unscored")
    scheduler.handle(Dispatched([2]))
    judged, _, ready = scheduler.handle(Scored(2, [1.0, 0.0], num_tokens=5, num_turns=7))
    assert judged == Judged(2, kept=True) and isinstance(ready, StepReady)
    assert ready.close.trained == [2] and ready.close.report["text"]
    assert any("keep" in name or "filter" in name for name in ready.close.report["metrics"])
    assert scheduler.handle(Trained()) == []
    assert scheduler.handle(Published(1)) == []
    assert scheduler.progress["steps"] == 1
    totals = scheduler.totals
    assert totals["generated"] == {"groups": 3, "trajectories": 6, "turns": 7, "tokens": 18}
    assert totals["dropped"]["groups"] == 2 and totals["trained"]["tokens"] == 5


def test_first_members():
    scheduler = Scheduler(train_batch_size=1, n=4, filter={}, mode="streaming", screen_first=2, rounds_in_flight=8)
    scheduler.handle(BeginStep())
    scheduler.handle(Dispatched([0]))
    judged, draw = scheduler.handle(Screened(0, [1.0, 1.0], num_tokens=6))
    assert judged == Judged(0, kept=False, reason="screened")
    assert draw == Draw(step=1, round=1, num_prompts=2)
    scheduler.handle(Dispatched([1, 2]))
    assert scheduler.handle(Screened(1, [1.0, 0.0], num_tokens=6)) == [Continue(1)]
    assert scheduler.handle(Sampled(2, 1.0)) == []
    assert scheduler.handle(Sampled(2, 0.0)) == [Continue(2)]
    scheduler.handle(Scored(1, [1.0, 0.0, 1.0, 1.0], num_tokens=12))
    scheduler.handle(Trained())
    totals = scheduler.totals
    assert totals["dropped"] == {"groups": 1, "trajectories": 2, "turns": 0, "tokens": 6}
    assert totals["trained"]["trajectories"] == 4 and totals["generated"]["trajectories"] == 10


@pytest.mark.parametrize(("num_prompts", "epochs"), [(None, 1), (4, 2), (5, 3)])
def test_epochs_that_keep_nothing_end_a_run_with_the_number_of_prompts(num_prompts, epochs):
    scheduler = Scheduler(train_batch_size=2, n=2, filter={})
    if num_prompts is not None:
        scheduler.set_num_prompts(num_prompts)
    scheduler.handle(BeginStep())
    for epoch in range(epochs):  # a driver that passes over all but two prompts of each epoch
        scheduler.handle(Dispatched([2 * epoch, 2 * epoch + 1], exhausted=True))
        scheduler.handle(Scored(2 * epoch, [1.0, 1.0]))
        commands = scheduler.handle(Scored(2 * epoch + 1, [1.0, 1.0]))
        assert isinstance(commands[-1], Stop) == (epoch + 1 == epochs), commands
        assert NextEpoch(epoch + 1) in commands or scheduler.is_ended


def drive(scheduler, seed, steps, restart):
    """Runs a scheduler to its end against random groups; the log of all commands.

    With `restart` the scheduler is written out and read back before every event.
    """
    generator = random.Random(seed)
    log, queue, flying, number = [], [BeginStep()], [], 0
    while queue or flying:
        if not queue:
            group = flying.pop(generator.randrange(len(flying)))
            if generator.random() < 0.05:
                queue.append(Failed(group, num_tokens=3))
            else:
                chance = random.Random(group).random()
                values = [float(random.Random((group, member).__hash__()).random() < chance) for member in range(4)]
                queue.append(Sampled(group, values[0]))
                queue.append(Scored(group, values, num_tokens=12))
        if restart:
            scheduler = Scheduler.restore(scheduler.snapshot())
        event = queue.pop(0)
        for command in scheduler.handle(event):
            log.append(command)
            match command:
                case Draw(num_prompts=num):
                    started = list(range(number, number + num))
                    number += num
                    flying.extend(started)
                    queue.append(Dispatched(started, version=scheduler.progress["steps"]))
                case StepReady() | StepClosed():
                    queue += [Trained(), Published(scheduler.progress["steps"] + 1), BeginStep()]
                case SkipStep():
                    queue.append(BeginStep())
                case Abort(groups):
                    for group in groups:
                        flying.remove(group)
                        queue.append(Aborted(group, num_tokens=1))
                case Finish() | Stop():
                    flying.clear()
                case Judged() | RoundComplete() | Train() | NextEpoch():
                    pass
        if scheduler.is_ended:
            break
    assert scheduler.is_ended
    return log, scheduler


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "rounds", "gen_batch_size": 6},
        {"mode": "deficit"},
        {"mode": "streaming", "rounds_in_flight": 3, "ppo_mini_batch_size": 2},
        {"mode": "streaming", "surplus": "carry", "max_lag": 2, "gen_batch_size": 8},
    ],
)
def test_a_restored_machine_goes_on_as_if_never_stopped(settings):
    make = lambda: Scheduler(  # noqa: E731
        train_batch_size=4, n=4, filter={"kind": "variance"}, total_steps=5, max_num_gen_batches=None, **settings
    )
    log, scheduler = drive(make(), 3, 5, restart=False)
    again, restored = drive(make(), 3, 5, restart=True)
    assert log == again and scheduler.snapshot() == restored.snapshot()
    assert isinstance(log[-1], Finish) and log[-1].why == "total_steps"
    totals = scheduler.totals
    places = {name: count["groups"] for name, count in totals.items()}
    come = places["generated"] + places["carried_in"] + places["in_flight_in"]
    went = sum(places.values()) - come
    assert come == went and places["trained"] == 20


def test_pickle_and_config():
    scheduler = Scheduler(train_batch_size=2, n=2)
    scheduler.handle(BeginStep())
    again = pickle.loads(pickle.dumps(scheduler))
    assert again.snapshot() == scheduler.snapshot()
    config = tamis.Config({"preset": "dapo", "data": {"train_batch_size": 2, "gen_batch_size": 6}})
    machine = Scheduler.of_config(config)
    assert machine.handle(BeginStep()) == [Draw(step=1, round=1, num_prompts=6)]
    assert machine.settings["filter"]["kind"] == "variance" and not machine.depends_on_timing


def test_cancelled_and_length():
    scheduler = Scheduler(train_batch_size=1, n=1, total_steps=9)
    scheduler.set_length(total_steps=1)
    assert scheduler.settings["total_steps"] == 1
    (finish,) = scheduler.handle(Cancelled())
    assert isinstance(finish, Finish) and finish.why == "cancelled" and scheduler.is_ended


def test_an_event_that_does_not_fit_changes_nothing():
    scheduler = Scheduler(train_batch_size=1, n=2, filter=tamis.Filter())
    before = scheduler.snapshot()
    for event, message in (
        (Trained(), "event `trained` came while the scheduler was between steps"),
        (Scored(3, [1.0, 0.0]), "group 3 is not being generated"),
    ):
        with pytest.raises(tamis.EventError, match=message):
            scheduler.handle(event)
        assert scheduler.snapshot() == before
    scheduler.handle(BeginStep())
    scheduler.handle(Dispatched([0]))
    with pytest.raises(tamis.EventError, match="expected 2 trajectories, got 1"):
        scheduler.handle(Scored(0, [1.0]))
    with pytest.raises(TypeError, match="expected an event"):
        scheduler.handle("begin_step")
    with pytest.raises(tamis.EventError, match="no snapshot"):
        Scheduler.restore("{}")


def test_unscored_members():
    scheduler = Scheduler(train_batch_size=1, n=2, filter=tamis.Filter())
    scheduler.handle(BeginStep())
    scheduler.handle(Dispatched([0]))
    assert scheduler.handle(Scored(0, [math.nan, math.inf]))[0].reason == "unscored"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"surplus": "carry"}, r"`schedule.surplus: carry` needs `schedule.max_lag`\nhint: set `schedule.max_lag: 1`"),
        ({"mode": "stream"}, "`schedule.mode` cannot be `stream`"),
        ({"max_gen_batches": 3}, "did you mean `schedule.max_num_gen_batches`"),
        ({"train_batch_size": 0}, "`data.train_batch_size` must be"),
        ({"mode": "streaming", "filter": {"kind": "top_k", "k": 1}}, "compares the groups of a round"),
    ],
)
def test_settings_that_do_not_go(settings, message):
    with pytest.raises(tamis.ConfigError, match=message):
        Scheduler(**{"train_batch_size": 4, "n": 4, "filter": tamis.Filter(), **settings})


def test_settings_without_effect_are_told():
    with pytest.warns(UserWarning, match="`schedule.max_lag` has no effect"):
        Scheduler(train_batch_size=4, n=4, filter=tamis.Filter(), max_lag=2)
