from longwatch.runner.policy import AgentSpec as AgentSpec
from longwatch.runner.policy import OutputCheck as OutputCheck
from longwatch.runner.policy import RunnerPolicy as RunnerPolicy
from longwatch.runner.policy import SourceSpec as SourceSpec
from longwatch.runner.runner import Runner as Runner
