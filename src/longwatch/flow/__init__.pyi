from longwatch.errors import ComputationFailedError as ComputationFailedError
from longwatch.errors import FlowError as FlowError
from longwatch.errors import GraphError as GraphError
from longwatch.errors import NotSetError as NotSetError
from longwatch.errors import UnknownExecutionError as UnknownExecutionError
from longwatch.errors import UnknownGraphError as UnknownGraphError
from longwatch.flow.context import FlowContext as FlowContext
from longwatch.flow.execution import Computation as Computation
from longwatch.flow.execution import Execution as Execution
from longwatch.flow.execution import ExecutionSummary as ExecutionSummary
from longwatch.flow.execution import Value as Value
from longwatch.flow.explanation import Explanation as Explanation
from longwatch.flow.flow import Flow as Flow
from longwatch.flow.gates import Gate as Gate
from longwatch.flow.gates import and_ as and_
from longwatch.flow.gates import not_ as not_
from longwatch.flow.gates import or_ as or_
from longwatch.flow.gates import when as when
from longwatch.flow.graph import Graph as Graph
from longwatch.flow.map_nodes import map as map  # noqa: A004 - the contract's word
from longwatch.flow.nodes import Node as Node
from longwatch.flow.nodes import compute as compute
from longwatch.flow.nodes import input as input  # noqa: A004 - the contract's word
from longwatch.flow.worker import FlowWorker as FlowWorker
