"""The verbs of the command line as functions: ``cerebro_eeg.finetune("my-store", task="eyes", ...)``.

They are made from the verbs themselves (``commands/python_call.py``). ``api.pyi`` beside this file says the same to
editors and type checkers; ``python tests/test_api.py`` writes it anew.
"""

from cerebro_eeg.commands import in_memory
from cerebro_eeg.commands.compare import compare as _compare
from cerebro_eeg.commands.evaluate import evaluate as _evaluate
from cerebro_eeg.commands.finetune import finetune as _finetune
from cerebro_eeg.commands.info import info as _info
from cerebro_eeg.commands.prepare import prepare as _prepare
from cerebro_eeg.commands.pretrain import pretrain as _pretrain
from cerebro_eeg.commands.python_call import python_verb
from cerebro_eeg.commands.simulate import simulate as _simulate
from cerebro_eeg.commands.verify import verify as _verify

simulate = python_verb(_simulate)
prepare = python_verb(_prepare)
info = python_verb(_info)
pretrain = python_verb(_pretrain)
finetune = python_verb(_finetune)
evaluate = python_verb(_evaluate)
compare = python_verb(_compare)
predict = python_verb(in_memory.predict)
embed = python_verb(in_memory.embed)
repair = python_verb(in_memory.repair)
verify = python_verb(_verify)
