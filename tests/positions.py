"""A position in which every field is set, for the tests of what stores it."""

from headrace.model import OpenXa, Position

POSITION = Position(
    server_uuid="3e11fa47-71ca-11e1-9e33-c80aa9429562",
    file="mysql-bin.000003",
    offset=4711,
    gtid_set="3e11fa47-71ca-11e1-9e33-c80aa9429562:1-23",
    events_done=2,
    open_xa=(OpenXa("x'31'", "mysql-bin.000002", 120),),
    last_pos=(1 << 63) - 1,
    commit_time_us=1_700_000_000_000_000,
)
