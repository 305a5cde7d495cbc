"""The views: functions that collect the facts of one page. They run in the pool."""
