from longwatch.observe.event_log import JsonFormatter as JsonFormatter
from longwatch.observe.event_log import PrettyFormatter as PrettyFormatter
from longwatch.observe.metrics import Metrics as Metrics
