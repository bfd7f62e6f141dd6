"""Formats of last resort, for model files without a chat template.

ChatML, if the vocabulary has its two markers: it is what nearly all models with these markers were trained on. Else plain
lines, which base models continue reasonably; the answer ends where the model begins the user's next line. Both say what they are.
"""

from __future__ import annotations

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHATML_NOTE = "the file has no chat template; ChatML is used, since the vocabulary has its markers"
CHATML_MARKERS = ("<|im_start|>", "<|im_end|>")

PLAIN = (
    "{% for message in messages %}"
    "{% if message.role != 'system' %}{{ message.role | capitalize }}: {% endif %}{{ message.content | trim }}\n\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
PLAIN_NOTE = "the file has no chat template (a base model?); plain `User:` and `Assistant:` lines are used"
PLAIN_STOPS = ("\nUser:",)
