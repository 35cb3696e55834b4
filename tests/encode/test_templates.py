"""Chat templates: rendered as by transformers, in a process of their own that hostile ones cannot outlast."""

import os
import re
import signal
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from uwaga.encode.templates import Template, TemplateFault

pytestmark = pytest.mark.slow

VARIABLES: Mapping[str, Any] = {
    "tools": None, "documents": None, "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>", "common_kwargs": {},
    "depth": 3, "tree": {"b": [1, {"c": None}], "a": 2.5, "items": "kept"},
}  # fmt: skip
CHATML = """\
{%- if messages[0]['role'] == 'system' -%}
    {{ '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role != "system" or not loop.first %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content | trim + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
LLAMA = """\
{{- bos_token }}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if not date_string is defined %}{%- if strftime_now is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}{%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}{%- if tools is not none %}{{- "Environment: ipython\\n" }}{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}{{- system_message }}{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}{{- raise_exception("one tool call at once!") }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""
QWEN3 = """\
{%- if tools %}{{- '<|im_start|>system\\n' }}{%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
{%- else %}{%- if messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "query" and message.content is string and not(message.content.startswith('<x>') and \
message.content.endswith('</x>')) %}{%- set ns.multi_step_tool = false %}{%- set ns.last_query_index = index %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if '</think>' in content %}{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}
    {%- if loop.index0 > ns.last_query_index %}{{- '<' + message.role + '>' + content.strip('\\n') }}
    {%- elif loop.last or (not loop.last and loop.nextitem.role) %}{{- message.role + content }}{%- endif %}
{%- endfor %}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>' }}{%- endif %}
"""
GEMMA = """\
{{ bos_token }}{%- set first_user_prefix = "" -%}
{%- if messages[0]['role'] == 'system' -%}{%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
{%- set loop_messages = messages[1:] -%}{%- else -%}{%- set loop_messages = messages -%}{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'query') != (loop.index0 % 2 == 0) -%}{{ raise_exception("Roles must alternate") }}{%- endif -%}
    {{ '<start_of_turn>' + message.role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}{{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}{%- for item in message['content'] -%}{{ item.type }}{%- endfor -%}{%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
"""
MACROS = """\
{%- macro node(value, level=0) -%}
{%- if value is mapping -%}{{ '{' }}{%- for key, each in value.items() -%}{{ key }}={{ node(each, level + 1) }}{%- if not loop.last %}, \
{% endif -%}{%- endfor -%}{{ '}' }}
{%- elif value is sequence and value is not string -%}[{%- for each in value -%}{{ node(each, level=level + 1) }};{%- endfor -%}]
{%- else -%}{{ value if value is not none else 'null' }}@{{ level }}{%- endif -%}
{%- endmacro -%}
{{ node(tree) }}{{ node(messages) }}{% generation %}{% set inside = 1 %}{{ inside }}{% endgeneration %}{{ inside }}
"""
FEATURES = """\
{{ messages | tojson }}{{ tree | tojson(indent=2, sort_keys=true) }}{{ 'a' ~ 1.5 ~ none }}{{ messages | map(attribute='role') | join('/') }}
{% for m in messages if m.role != 'system' %}{{ loop.index }}{% if loop.last %}{% break %}{% endif %}{% continue %}{% else %}none{% endfor %}
  {% set x %}a{{ 1 }}{% endset %}{{ x | upper }}{{ dict(a=1) }}{{ nothing }}{{ '%s' % 1 }}{{ messages[0].content[::-1] }}
{# c #}{% generation %}{% set messages = [] %}{{ messages }}{% endgeneration %}{{ messages | length }}
end

"""
TEMPLATES = {
    "chatml": CHATML, "llama": LLAMA, "qwen3": QWEN3, "gemma": GEMMA, "macros": MACROS, "features": FEATURES,
}  # fmt: skip
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20) | st.sampled_from(
    [" a cat \n", "</think>\n\nb", "<b>'木'</b>"]
)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "query", "document"]), "content": TEXTS}),
    min_size=1, max_size=3,
)  # fmt: skip


@pytest.mark.parametrize("name", TEMPLATES)
def test_known_templates_are_rendered_as_by_transformers(name: str) -> None:
    ours = Template(TEMPLATES[name])

    @given(MESSAGES)
    def compare(messages: list[dict[str, str]]) -> None:
        try:
            (theirs,), _ = render_jinja_template([messages], chat_template=TEMPLATES[name], **VARIABLES)
        except Exception as error:  # noqa: BLE001  # a template raises what Python raises
            with pytest.raises(TemplateFault, match=re.escape(str(error))):
                ours.render(VARIABLES, [messages])
        else:
            assert ours.render(VARIABLES, [messages, messages]) == [theirs, theirs]

    compare()


HOSTILE = {
    "an endless loop": "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3,
    "strings that are doubled": "{% set a = 'a' * 64 %}" + "{% set a = a ~ a %}" * 40,
    "a product": "{{ 'x' * 10000000000 }}",
    "a long result": "{{ 'a' * 9999999 }}",
    "a power": "{{ 9 ** 999999999 }}",
    "a macro that calls itself": "{% macro f(a) %}{{ f(a) }}{{ f(a) }}{% endmacro %}{{ f(1) }}",
    "a deep list": "{% set ns = namespace(a=[]) %}{% for i in range(5000) %}{% set ns.a = [ns.a] %}{% endfor %}{{ ns.a }}",
    "nested conditions": "{% if true %}" * 110 + "{% endif %}" * 110,
    "nested parentheses": "{{ " + "(" * 15000 + ")" * 15000 + " }}",
    "a long sum": "{{ 1" + " + 1" * 15000 + " }}",
    "a long number": "{{ " + "9" * 60000 + " }}",
}
# Names that lead from a value to the interpreter, and what gives another text another time.
REFUSED = (
    "''.__class__.__mro__[1].__subclasses__()[0]", "messages.append(1)", "messages.__init__.__globals__.x", "'{0.__class__.x}'.format(1)",
    "('{0.__class__.x}' | attr('format'))(1)", "raise_exception.__globals__.x", "namespace(__class__=1)", "strftime_now('%d')", "lipsum()",
    "[1, 2] | random", "self.__init__.__globals__.x", "dict.__init__.__globals__.x", "cycler.__init__.__globals__.os.x",
)  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_end(name: str) -> None:
    with pytest.raises(TemplateFault):
        Template(HOSTILE[name]).render({}, [[]])


@pytest.mark.parametrize("expression", REFUSED)
def test_the_sandbox_has_no_way_out(expression: str) -> None:
    with pytest.raises(TemplateFault):
        Template(f"{{{{ {expression} }}}}").render({}, [[]])


def test_a_rendering_that_was_ended_leaves_later_ones_as_they_are() -> None:
    template = Template("{{ 'x' * n }}{{ messages }}")
    assert template.render({"n": 1}, [[1], [2]]) == ["x[1]", "x[2]"]
    with pytest.raises(TemplateFault):
        template.render({"n": 10**10}, [[]])
    assert template.process is not None
    os.kill(template.process.pid, signal.SIGKILL)
    with pytest.raises(TemplateFault):
        template.render({"n": 1}, [[]])
    assert template.render({"n": 2}, [[]]) == ["xx[]"]


def test_threads_and_forks_render_at_once() -> None:
    template, wrong = Template("{{ messages }}"), list[int]()

    def render(first: int) -> None:
        wrong.extend(n for n in range(first, first + 50) if template.render({}, [[n]]) != [f"[{n}]"])

    threads = [threading.Thread(target=render, args=(first,)) for first in range(0, 400, 100)]
    for thread in threads:
        thread.start()
    children = []
    for first in (1000, 2000):  # while the threads hold the lock
        if not (child := os.fork()):
            wrong.clear()
            render(first)
            os._exit(len(wrong))
        children.append(child)
    for thread in threads:
        thread.join()
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
    assert not wrong


def test_the_process_ends_with_the_template() -> None:
    template = Template("{{ messages }}")
    template.render({}, [[]])
    assert template.process is not None
    pid = template.process.pid
    del template
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
