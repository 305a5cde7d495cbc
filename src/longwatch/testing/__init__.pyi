from longwatch.core.fake_clock import FakeClock as FakeClock
from longwatch.testing.graph_check import check_graph as check_graph
from longwatch.testing.graph_run import GraphRun as GraphRun
from longwatch.testing.graph_run import run_graph as run_graph
from longwatch.testing.mailbox_check import check_mailbox as check_mailbox
from longwatch.testing.observer import RecordingObserver as RecordingObserver
from longwatch.testing.service_check import check_service as check_service
from longwatch.testing.stepped_worker import Step as Step
