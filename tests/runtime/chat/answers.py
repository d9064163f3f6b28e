"""Answers of models in each format: what is in them, and what only looks like a call."""

from hypothesis import strategies as st

from millrace_runtime.chat.parsers.registry import HARMONY, TOOL_FORMATS, list_markers

PROPERTIES = {
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "rows": {"type": ["array", "null"]},
    "odd": True,
    "pair": {"$ref": "#/$defs/Pair"},
}
SCHEMA = {"properties": PROPERTIES, "$defs": {"Pair": {"type": "object"}}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
HERMES = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
LLAMA = '{"name": "f", "parameters": {"a": 1}}'
AS_TEXT = r'{"name": "f", "arguments": "{\"a\": \"\\\"}\"}"}'
TRICKY = r'{"a": "}</tool_call>\"]", "b": [{"c": "{[<tool_call>"}], "d": "\\"}'


def write_values(**values: str) -> str:
    written = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function=f>\n{written}</function>\n</tool_call>"


def write_seed(**values: str) -> str:
    written = "".join(f"<parameter={key}>{value}</parameter>\n" for key, value in values.items())
    return f"<seed:tool_call>\n<function=f>\n{written}</function>\n</seed:tool_call>"


def write_glm(between: str, **values: str) -> str:
    written = "".join(
        f"<arg_key>{key}</arg_key>{between}<arg_value>{value}</arg_value>{between}"
        for key, value in values.items()
    )
    return f"<tool_call>f{between}{written}</tool_call>"


def write_section(*calls: str, name: str = "f<｜tool▁sep｜>") -> str:
    written = "".join(f"<｜tool▁call▁begin｜>{name}{call}<｜tool▁call▁end｜>" for call in calls)
    return f"<｜tool▁calls▁begin｜>{written}<｜tool▁calls▁end｜>"


def write_messages(*messages: str) -> str:
    return "<|end|><|start|>assistant".join(f"<|channel|>{message}" for message in messages)


KIMI = (
    "<|tool_calls_section_begin|>"
    "<|tool_call_begin|>functions.f:3<|tool_call_argument_begin|>{}<|tool_call_end|>"
    "<|tool_calls_section_end|>"
)
FUNCTION = "<start_function_call>call:f{%s}<end_function_call>"
LIST = '[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]'
HEAD = "commentary to=functions.f <|constrain|>json<|message|>"


# fmt: off
ANSWERS: list[tuple[str | None, str, str, list[tuple[str, str]]]] = [
    (None, HERMES, HERMES, []),
    ("hermes", f"Well.\n{HERMES}\n{HERMES}\n\nDone.", "Well.\nDone.", [("f", '{"a": 1}')] * 2),
    ("hermes", f'<tool_call>{{"arguments": {TRICKY}, "name": "f"}}</tool_call>', "", [("f", TRICKY)]),
    ("hermes", f'<tool_call>{{"id": [{{}}], "n": -1, "name": "\\u0066", "parameters": {TRICKY}', "",
     [("f", TRICKY)]),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
    ("hermes", '<tool_call>{"name": "f", "arg', "", [("f", "")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": [1, "\\', "", [("f", '{"a": [1, "\\')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1</tool_call> So', "So", [("f", '{"a": 1')]),
    ("hermes", f"{HERMES[:-13]}}}}}\n</tool_call>!", "!", [("f", '{"a": 1}')]),
    ("hermes", f"<tool_call>{LLAMA}\n{LLAMA}</tool_call>", "", [("f", '{"a": 1}')] * 2),
    ("hermes", f"<tool_call><tool_call>{LLAMA} none", "<tool_call>none", [("f", '{"a": 1}')]),
    ("hermes", f"<tool_call>{AS_TEXT}</tool_call>", "", [("f", r'{"a": "\"}"}')]),
    ("hermes", '<tool_call>{"arguments": "{}", "name": "f"}</tool_call>', "", [("f", "{}")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", "{}")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": " "}</tool_call>', "", [("f", "{}")]),
    ("hermes", r'<tool_call>{"name": "f", "arguments": "{\"a\": \"\u00e', "", [("f", '{"a": "')]),
    ("hermes", r'<tool_call>{"name": "f", "arguments": "{\"a\": \"b\ud83d', "", [("f", '{"a": "b')]),
    ("hermes", r'<tool_call>{"name": "f", "arguments": "{\"a\": \"b\nc\"}"}', "", [("f", r'{"a": "b\nc"}')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": "', "", [("f", "")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": nul', "", [("f", "")]),
    ("hermes", f"<tool_call>\n[{LLAMA},\n {LLAMA}]\n</tool_call> So", "So", [("f", '{"a": 1}')] * 2),
    ("hermes", f"<tool_call>{LLAMA}, so", ", so", [("f", '{"a": 1}')]),
    ("llama3", AS_TEXT, "", [("f", r'{"a": "\"}"}')]),
    ("llama3", f"I look.\n{LLAMA}\nDone.\n{LLAMA}", "I look.\nDone.\n", [("f", '{"a": 1}')] * 2),
    ("llama3", f'{{"b": 2}}\n{{"name": "g"}}\n{LLAMA}', '{"b": 2}\n{"name": "g"}\n', [("f", '{"a": 1}')]),
    ("llama3", f"I look.<|python_tag|>{LLAMA}", "I look.", [("f", '{"a": 1}')]),
    ("llama3", f"{LLAMA}; {LLAMA}\n{LLAMA}", "", [("f", '{"a": 1}')] * 3),
    ("llama3", f" <|python_tag|>{LLAMA.replace('parameters', 'arguments')}\n", "", [("f", '{"a": 1}')]),
    ("llama3", f'{{"type": "function", "name": "f", "parameters": {TRICKY}}}', "", [("f", TRICKY)]),
    ("llama3", f'{LLAMA}\n{{"b": 2}}', '{"b": 2}', [("f", '{"a": 1}')]),
    ("llama3", '{"name": "f", "para', "", [("f", "")]),
    ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {}, "id": 1},{"name":"g","arguments": {"": "]"}}]',
     "", [("f", "{}"), ("g", '{"": "]"}')]),
    ("mistral", f"So:[TOOL_CALLS]f[ARGS]{TRICKY}[TOOL_CALLS]g{{}}", "So:", [("f", TRICKY), ("g", "{}")]),
    ("mistral", f"[TOOL_CALLS] [{AS_TEXT}]", "", [("f", r'{"a": "\"}"}')]),
    ("mistral", '[TOOL_CALLS]f[CALL_ID]a1[ARGS] {"a": 1', "", [("f", '{"a": 1')]),
    ("mistral", "[TOOL_CALLS]f[ARGS]", "", [("f", "")]),
    ("qwen3_coder", f"Well.\n{write_values()}\n{write_values()}\nDone.", "Well.\nDone.", [("f", "{}")] * 2),
    ("qwen3_coder", write_values(text='a\n"b" }</x>\n', count="2"), "",
     [("f", r'{"text": "a\n\"b\" }</x>\n", "count": 2}')]),
    ("qwen3_coder", write_values(text="1", count="one", maybe="null", rows="None", odd="7"), "",
     [("f", '{"text": "1", "count": "one", "maybe": null, "rows": null, "odd": "7"}')]),
    ("qwen3_coder", write_values(rows='[1, {"a": 2.50}]', count="NaN", maybe="3"), "",
     [("f", '{"rows": [1, {"a": 2.50}], "count": "NaN", "maybe": "3"}')]),
    ("qwen3_coder", write_values(text="a", count="1").replace("</parameter>\n", ""), "",
     [("f", '{"text": "a", "count": 1}')]),
    ("qwen3_coder", write_values(text="a")[12:], "", [("f", '{"text": "a"}')]),
    ("qwen3_coder", "<function=f>\n<parameter=text>\nab", "", [("f", '{"text": "ab')]),
    ("qwen3_coder", "<function=f>\n<parameter=text>a</parameter><parameter=c", "", [("f", '{"text": "a"')]),
    ("qwen3_coder", write_values(pair='{"a": [1]}'), "", [("f", '{"pair": {"a": [1]}}')]),
    ("seed_oss", f"Well.\n{write_seed()}\n{write_seed()}\nDone.", "Well.\nDone.", [("f", "{}")] * 2),
    ("seed_oss", write_seed(text='a\n"b"\n', count="2", maybe="null"), "",
     [("f", r'{"text": "a\n\"b\"\n", "count": 2, "maybe": null}')]),
    ("seed_oss", write_values(text="a\n", count="2").replace("tool_call", "seed:tool_call"), "",
     [("f", r'{"text": "a\n", "count": 2}')]),
    ("seed_oss", write_seed(text="</tool_call>", rows="[1]")[17:], "",
     [("f", '{"text": "</tool_call>", "rows": [1]}')]),
    ("granite", f"<|tool_call|>{LIST}", "", [("f", '{"a": 1}'), ("g", "{}")]),
    ("granite", f"So <tool_call> {LIST}</tool_call>\n", "So ", [("f", '{"a": 1}'), ("g", "{}")]),
    ("granite", f"<|tool_call|>[{LLAMA}\n<|tool_call|>{LLAMA}", "", [("f", '{"a": 1}')] * 2),
    ("granite", '<|tool_call|>[{"name": "f", "arguments": {"a": [1, "]', "", [("f", '{"a": [1, "]')]),
    ("phi4_mini", f"So:<|tool_call|>{LIST}<|/tool_call|> Done.", "So:Done.",
     [("f", '{"a": 1}'), ("g", "{}")]),
    ("phi4_mini", f"<|tool_call|>{LLAMA}</|tool_call|>functools[{LLAMA}]", "", [("f", '{"a": 1}')] * 2),
    ("phi4_mini_json", f"functools{LIST}", "", [("f", '{"a": 1}'), ("g", "{}")]),
    ("phi4_mini_json", f'I import functools.\nfunctools[ {{"name": "f", {TRICKY[1:]}, {LLAMA}',
     "I import functools.\n", [("f", "{}"), ("f", '{"a": 1}')]),
    ("internlm", f"I look.<|action_start|><|plugin|>\n{LLAMA}<|action_end|>\n Done.", "I look.Done.",
     [("f", '{"a": 1}')]),
    ("internlm", f"<|action_start|><|plugin|>{LLAMA}<|action_end|><|action_start|><|plugin|>{AS_TEXT}", "",
     [("f", '{"a": 1}'), ("f", r'{"a": "\"}"}')]),
    ("nemotron", f"<TOOLCALL>{LIST}</TOOLCALL>", "", [("f", '{"a": 1}'), ("g", "{}")]),
    ("glm4", 'f\n{"a": 1}', "", [("f", '{"a": 1}')]),
    ("glm4", f"I look.\n<|assistant|>f\n{TRICKY}<|assistant|> f\n \n{{}}\n<|observation|>", "I look.\n",
     [("f", TRICKY), ("f", "{}")]),
    ("glm4", '\nLook:\nf\n{"a": 1}\nf\n{} \nf\nDone.', "\nLook:\nf\nDone.", [("f", '{"a": 1}'), ("f", "{}")]),
    ("glm4", 'f\n{"a": "b\nc"}', "", [("f", r'{"a": "b\nc"}')]),
    ("glm4", "f\n```\nf\n{}\n  ```\nf\n{}", "f\n```\nf\n{}\n  ```\n", [("f", "{}")]),
    ("glm4", "```\nf\n{}<|assistant|>f\n{}", "```\nf\n{}", [("f", "{}")]),
    ("pythonic", "[f(a=1), f(b='x', c=True)]", "", [("f", '{"a": 1}'), ("f", '{"b": "x", "c": true}')]),
    ("pythonic", r"""[f(a="it's \n \' \x41 \u00e9 \q \U0001F600 \"<|", b=[1, {'k\n': None}, (-3,)])]""", "",
     [("f", r"""{"a": "it's \n ' A é \\q 😀 \"<|", "b": [1, {"k\n": null}, [-3]]}""")]),
    ("pythonic", r"""[f(a=.5, b=1_000, c=+1, d=1., e=0x10, g=(1), h=-0, i=true, j=null)]""",
     "", [("f", r'{"a": 0.5, "b": 1000, "c": 1, "d": 1.0, "e": 16, "g": 1, "h": 0, "i": true, "j": null}')]),
    ("pythonic", r"[f(a='\0\a\v\101')]", "", [("f", r'{"a": "\u0000\u0007\u000bA"}')]),
    ("pythonic", '''[f(a="""print('"a")]')\n\'\'\'\n""", b='a' "b",\nc=r'\\d', d='\\ud83d\\ude00', e='')]''',
     "",
     [("f", r"""{"a": "print('\"a\")]')\n'''\n", "b": "ab", "c": "\\d", "d": "\ud83d\ude00", "e": ""}""")]),
    ("pythonic", "[f(from='x', a-b = 1,),\nf()] \n Done.", "Done.",
     [("f", '{"from": "x", "a-b": 1}'), ("f", "{}")]),
    ("pythonic", "So.\n<|python_start|> [f(a=1)]<|python_end|>[f()]", "So.\n",
     [("f", '{"a": 1}'), ("f", "{}")]),
    ("pythonic", "So:\n```tool_code\n[f(a=1)]\n[f()]\n```\n[f()]\n```", "So:\n```",
     [("f", '{"a": 1}'), ("f", "{}"), ("f", "{}")]),
    ("pythonic", "```python\n[f()]\n```\n[f()]", "```python\n[f()]\n```\n", [("f", "{}")]),
    ("minicpm3", 'So.\n<|tool_call_start|>\n```python\nf(a=1,b="x")\nf()\n```\n<|tool_call_end|>\n Done.',
     "So.\nDone.", [("f", '{"a": 1, "b": "x"}'), ("f", "{}")]),
    ("minicpm3", "<|tool_call_start|>[f(a=1)]<|tool_call_end|><|tool_call_start|>f()\n", "",
     [("f", '{"a": 1}'), ("f", "{}")]),
    ("glm45", f"Well.\n{write_glm('')}\n{write_glm(chr(10))} Done.", "Well.\nDone.", [("f", "{}")] * 2),
    ("glm45", write_glm("\n", text='a\n"b"', count="2", pair="[1]"), "",
     [("f", r'{"text": "a\n\"b\"", "count": 2, "pair": [1]}')]),
    ("glm45", "<tool_call>f\n<arg_key>text</arg_key> so <arg_value>a</tool_call>", "",
     [("f", '{"text": "a</tool_call>')]),
    ("glm45", "<tool_call>f<arg_key>text<arg_value>a</arg_value><arg_key>b</tool_call>c", "c",
     [("f", '{"text": "a"}')]),
    ("deepseek_v31", f"Well.{write_section(TRICKY, '{}')}\nDone.", "Well.Done.",
     [("f", TRICKY), ("f", "{}")]),
    ("deepseek_v31", write_section('{"a": 1')[:-20], "<｜tool▁call▁end", [("f", '{"a": 1')]),
    ("deepseek_v31", write_section('{"a": 1 ')[len("<｜tool▁calls▁begin｜>"):], "", [("f", '{"a": 1 ')]),
    ("deepseek_v3", write_section("{}\n```", "{}\n```", name="function<｜tool▁sep｜>f\n```json\n"), "",
     [("f", "{}")] * 2),
    ("kimi_k2", f"So {KIMI}", "So ", [("f", "{}")]),
    ("kimi_k2", KIMI, "", [("f", "{}")]),
    ("functiongemma", f"Well. {FUNCTION % ''} {FUNCTION % 'a:1'} Done.", "Well. Done.",
     [("f", "{}"), ("f", '{"a": 1}')]),
    ("functiongemma", FUNCTION
     % 'a:<escape>x\n"{}<escape>, b : [1.5,true,None,{<escape>c d<escape>:{}}],e:New York', "",
     [("f", r'{"a": "x\n\"{}", "b": [1.5, true, null, {"c d": {}}], "e": "New York"}')]),
    ("functiongemma", '<start_function_call>call:f{"a":<escape>b', "", [("f", '{"a": "b')]),
    ("functiongemma", "<start_function_call>call:f{a:1] x", "] x", [("f", '{"a": 1')]),
    ("functiongemma", f"<start_function_call>call:f{{{'a' * 300}", "a" * 300, [("f", "{")]),
    ("gemma4", '<|tool_call>call:f{a:<|"|>b<|"|>}<tool_call|>', "", [("f", '{"a": "b"}')]),
    (HARMONY, write_messages(f"{HEAD}{TRICKY}"), "", [("f", TRICKY)]),
    (HARMONY, write_messages("commentary<|message|>I look.", f"{HEAD}{{}}"), "I look.", [("f", "{}")]),
    (HARMONY, " to=f<|channel|>commentary json<|message|>{}<|call|>", "", [("f", "{}")]),
    (HARMONY, f"<|channel|>final<|message|>A{write_messages('', f'{HEAD}1')[11:]}", "A", [("f", "1")]),
    (HARMONY, "Hi<|end|> there<|channel|>commentary to=g<|message|>", "Hi there", [("g", "")]),
]
NO_CALLS = {
    "hermes": ["<tool_call>no</tool_call>", '<tool_call>{"arguments": {}', "<tool_cal",
               '<tool_call>{"name": "f", "arguments": "[]"}', '<tool_call>{"name": "f", "arguments": 1',
               '<tool_call>{"name": "f", "arguments": "\\ud800"}',
               "<tool_call>[]</tool_call>", '<tool_call>{"name": "f", "arguments": "hi',
               '<tool_call>{"name": "\\ud800", "arguments":',
               '<tool_call>{"name": 1}'],
    "llama3": [f"I say {LLAMA}", '{"a": {"name": "f"}}', '{"name": "Ann", "age": 3}', "<|python_tag|>print()",
               '{"name": "Ada"}', ' \n{"parameters": {}} {', "<|python", '["name"]', f"; {LLAMA}",
               'So.\n{"name": "f"}', 'So.\n{"name": "f", "para', f"So.\n {LLAMA}", 'A\n{"a": [\n{}\n]}'],
    "mistral": ["[TOOL_CALLS] no, [ARGS]{}", "[TOOL_CALLS]f[ARG", '[TOOL_CALLS] [{"a": 1}]', "a [TOOL_CALLS",
                "[TOOL_CALLS]f[ARGS] no", f"[TOOL_CALLS]{'f' * 300}[ARGS]{{}}"],
    "qwen3_coder": ["<tool_call>\nno", "<tool_call> <function=", "<function=>a", "<function=a\n>", "<functio",
                    f"<function={'f' * 300}></function>", "<function=f> is how", "<function=f>"],
    "seed_oss": ["<seed:tool_call>\nno", "<seed:tool_call> <function=", "<seed:tool_cal", "<tool_call>no",
                 "<function=f> is how"],
    "granite": ["<|tool_call|>", "<|tool_call|>[]", '<tool_call>[{"arguments": {}}]', "<|tool_cal", "[{}]"],
    "phi4_mini": ["<|tool_call|>[1]", "<|tool|>[]", "<|/tool_call|>", "functools[0]"],
    "phi4_mini_json": ["functools", "functools.partial", 'functools["a"]', "functools[ {",
                       f"functools {LLAMA}"],
    "internlm": ["<|action_start|><|plugin|>", f"<|action_start|><|interpreter|>{LLAMA}<|action_end|>",
                 f"<|plugin|>{LLAMA}", "<|action_start|>"],
    "nemotron": ["<TOOLCALL>[]</TOOLCALL>", "<TOOLCAL"],
    "glm4": ["g\n{}", 'f {"a": 1}', "f\n", " f\n[1]", "<|assistant|>f\nno", "So f\n{}",
             "<|assistant|> <|assist", "<|observation|>", f"{'f' * 300}\n{{}}", 'I f\n```json\n{"a": 1}',
             "f\t", "f \n{}", "f\t\n {}", "f\n{ user { id } }", "So:\n```graphql\nf\n{}\n```\nDone.",
             "f\n{} in prose", 'f\nf\n{"a": [1, "', "f\n{'a': 1}", "A\n f\n{}",
             f'f\n{{"a": "{"x" * (1 << 16)}"}}'],
    "pythonic": ["[f]", "[g()]", "[1, 2]", " [f", "So [f()]", "[\n]", "f(a=1)", "```python\nf(a=1)\n```",
                 "[[f()]]", "<|python_start|>f", f"[{'f' * 300}()]", "``", "```tool_code", "A\n[f\nB",
                 "[f(web)](https://x) is it.", "[f()] in prose", "A\n[f(a=1)]: b\n", "[f(a=1), g()]",
                 "```python\n[f(a=1)]\n```", "```python\n[f(p).read() for p in a]\n```", "[f(a=x)]",
                 "[ f()]", "[\nf()]", "[f ()]", "```tool_code [f()]", "<|python_tag|>[f()]", "[f()",
                 "[f('x')]", "[f(a=b for b in c)]", "[f(a='it", "[f(a='\n')]", "[f(a=New York)]",
                 "[f(a=NaN)]", "[f(a=1e999)]", "[f(a={1: 'b'})]",
                 "[f(a={**b})]", "[f(a=f(1))]", "[f(a=1, a=2)]", "[f(a=b'x')]", "[f(a=f'x')]", "[f(a=1j)]",
                 "[f(a=1 + 1)]", "[f(a=-True)]", "[f(a=...)]", "[f(a=)]", "[f(a=(1])]", "[f(a=1)f()]",
                 "[f() f()]",
                 "[f(a=1 # b\n)]", "[f(**{'a': 1})]", f"[f(a={'[' * 80}{']' * 80})]", f"[f(a={'9' * 5000})]",
                 f"[f(a=0x{'f' * 5000})]", f"[f(a='{'x' * (1 << 16)}')]", "[f(a={'b'})]", "[f(a==1)]",
                 "[f(a='\0')]"],
    "minicpm3": ["[f()]", "<|tool_call_start|>", "<|tool_call_start|>\n```python\ng()\n", "f()",
                 "<|tool_call_start|>f(a=1)\ng()<|tool_call_end|>",
                 "<|tool_call_start|>f('x')<|tool_call_end|>",
                 f"<|tool_call_start|>f(a='{'x' * (1 << 16)}')<|tool_call_end|>"],
    "glm45": ["<tool_call>", "<tool_call>f", '<tool_call>{"name": "f"}</tool_call>', "<tool_call>f <arg_ke",
              f"<tool_call>{'f' * 300}</tool_call>"],
    "deepseek_v3": [write_section("{}"), "<｜tool▁calls▁begin｜> no", "<｜tool▁call▁begin｜>a"],
    "deepseek_v31": [f"<｜tool▁call▁begin｜>{'f' * 600}{{}}", "<｜tool▁calls▁begin｜>\n<｜tool▁call",
                     write_section("")],
    "kimi_k2": ["<|tool_calls_section_begin|><|tool_call_begin|>f<|tool_call_argument_begin|>{}",
                "<|tool_calls_section_begin|><|tool_calls_section_end|>"],
    "functiongemma": ["<start_function_call>f{}", "<start_function_call>call:{}",
                      "<start_function_call>call:f",
                      f"<start_function_call> call:{'f' * 300}{{}}"],
    "gemma4": ["<|tool_call>call", "<tool_call|>"],
    HARMONY: ["Hi", "<|channel|>final", f"<|channel|>{'a ' * 200}<|message|>", "<|start|>user<|message|>"],
}
MARKS = ["<think>", "</think>", "</function>", "<parameter=text>", "<parameter=rows>", "</parameter>",
         "call:f{", *sorted({mark for name in TOOL_FORMATS for mark in list_markers(name, None)}),
         "<|channel|>final<|message|>", HEAD, "\n", *'{}[]<>",:\\;a ']
PARTS = st.sampled_from([*(text for _, text, _, _ in ANSWERS), *sum(NO_CALLS.values(), MARKS)])
FORMATS = [None, *TOOL_FORMATS]
THOUGHTS = [
    ("<think>\nA\n\nb\n</think>\n\nC\n", False, "A\n\nb", "C\n"),
    ("\n <think>a</think>b</think>", False, "a", "b</think>"),
    ("<think>\n\n</think>\n\nHi", False, "", "Hi"),
    ("\nA\n\n", True, "A\n\n", ""),
    ("<think>\na</thin", True, "a</thin", ""),
    ("a</think>b", True, "a", "b"),
    (" \n I <think>", False, "", " \n I <think>"),
    ("<thi", False, "", "<thi"),
]
HOSTILE = {
    "hermes": ("<", "<tool_call>", '<tool_call>{"a":', '<tool_call>{"a": "<tool_call>" ', "</tool_call"),
    "llama3": ('{"parameters": {"a": ', "<|python_tag|>", "{", "\n{", '\n{"name": "f"}'),
    "mistral": ("[", "[TOOL_CALLS]", "[TOOL_CALLS]f", "[TOOL_CALLS]f[CALL_ID]", '[TOOL_CALLS]{"a": ['),
    "qwen3_coder": ("<function=", "<function=f>", "<function=f><parameter=", "\n</",
                    "<function=f><parameter=rows>["),
    "seed_oss": ("<seed:tool_call>", "<function=f><parameter=", "\n</", "<function=f><parameter=rows>["),
    "granite": ("<|tool_call|>", '<|tool_call|>[{"a":', "<|tool_call|>[", '<tool_call>[{"name": "f"}'),
    "phi4_mini": ("<|tool_call|>[", '<|tool_call|>{"name": "f"}', "<|/tool_call", "functools"),
    "phi4_mini_json": ("functools[", 'functools[{"a": ["', "func", 'functools[{"name": "f"}'),
    "internlm": ("<|action_start|><|plugin|>", "<|action_start|>", '<|action_start|><|plugin|>{"a":'),
    "nemotron": ("<TOOLCALL>[", '<TOOLCALL>{"name": "f"}'),
    "glm4": ("f\n", "f", "<|assistant|>", "\n", 'f\n{"a":1}', "f \t", "\n```", 'f\n{"a": "'),
    "pythonic": ("[", "\n[", "[f()]", "[f(),", "[f(a='''", "'", "[f(a=1", "[f(",
                 "[f(a=", "\\", "[f(a='\\", "[f(a=[", "[f(a={'", "<|python_start|>",
                 "```python"),
    "minicpm3": ("<|tool_call_start|>f(", "<|tool_call_start|>f()\n", "f(a=[1,", "<|tool_call_start|>",
                 "```"),
    "glm45": ("<tool_call>f", "<tool_call>f<arg_key>", "<tool_call>f<arg_key>rows</arg_key><arg_value>["),
    "deepseek_v3": ("<｜tool▁call▁begin｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>f<｜"),
    "deepseek_v31": ("<｜tool▁call▁begin｜>f{", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{[", "<｜tool▁call▁en"),
    "kimi_k2": ("<|tool_call_begin|>f:1", "<|tool_call_begin|>"),
    "functiongemma": ("<start_function_call>call:f{a:", "[", "<start_function_call>call:f{<escape>"),
    "gemma4": ("<|tool_call>", '<|tool_call>call:f{a:[<|"|>'),
    HARMONY: ("<|channel|>", "<|end|><|start|>assistant", "<|channel|>analysis<|message|>", "<|"),
}
# fmt: on
BEGUN = [
    '<tool_call>{"name": "f", "arguments": {"a": ',
    "[TOOL_CALLS]f{",
    "<function=f><parameter=text>",
    '<|tool_call|>[{"name": "f", "arguments": {"a": ',
    '<|action_start|><|plugin|>{"name": "f", "parameters": {"a": ',
    "<tool_call>f<arg_key>text</arg_key><arg_value>",
    'f\n{"a": ',
    "[f(a='",
    "<|tool_call_start|>f(a=",
    "<start_function_call>call:f{a:<escape>",
    "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{",
    "<|channel|>analysis<|message|>",
]  # fmt: skip
