from turnwise.replay.conditions import Condition as Condition
from turnwise.replay.grading import FunctionGrader as FunctionGrader, Grader as Grader, ModelGrader as ModelGrader
from turnwise.replay.recorded import RecordedTurn as RecordedTurn, recorded_turns as recorded_turns
from turnwise.replay.records import Answer as Answer, Call as Call, TurnReplay as TurnReplay
from turnwise.replay.replaying import Variant as Variant, Work as Work, replay_turns as replay_turns
from turnwise.replay.run import Replay as Replay, check_requests as check_requests, replay as replay
from turnwise.replay.scale.parts import Unreadable as Unreadable
from turnwise.replay.scale.settings import AtScale as AtScale, Progress as Progress
from turnwise.replay.selecting import Selection as Selection
from turnwise.replay.shadowed import ShadowRecords as ShadowRecords
from turnwise.replay.statistics import (
    Group as Group,
    Interval as Interval,
    MetricSummary as MetricSummary,
    Summary as Summary,
)
from turnwise.replay.tools import RecordedTools as RecordedTools
