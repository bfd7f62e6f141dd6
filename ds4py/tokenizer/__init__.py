"""Text to token ids and back, from GGUF metadata alone."""

from ds4py.tokenizer.detokenizer import Detokenizer
from ds4py.tokenizer.load import load_tokenizer
from ds4py.tokenizer.prompt import PromptText
from ds4py.tokenizer.special import Matcher
from ds4py.tokenizer.tokenizer import Tokenizer
from ds4py.tokenizer.vocab import TokenType, Vocab

__all__ = ["Detokenizer", "Matcher", "PromptText", "TokenType", "Tokenizer", "Vocab", "load_tokenizer"]
