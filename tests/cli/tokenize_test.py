#!/usr/bin/env python3
"""Tests of tools/tokenize.py (tokens, widths, separators, errors) and tools/generate.py (prompt, text, errors).

Exits with 77 (skipped) without the package `tokenizers`.
"""
import array
import contextlib
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import venv

try:
    import tokenizers
except ImportError:
    print("the tokenizers package is not installed")
    sys.exit(77)

from weft_case import ConcurrentRunner

GENERATE = pathlib.Path(__file__).resolve().parents[2] / "tools" / "generate.py"
TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools" / "tokenize.py"
WORDS = {"<unk>": 0, "</s>": 1, "one": 2, "two": 3, "far": 70000}


class ToolCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.tokenizer = self.folder / "tokenizer.json"
        model = tokenizers.Tokenizer(tokenizers.models.WordLevel(WORDS, unk_token="<unk>"))
        model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        model.save(str(self.tokenizer))

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
        return str(path)

    def run_tool(self, output, *arguments):
        command = [sys.executable, TOOL, "--tokenizer", self.tokenizer, "--output", self.folder / output, *arguments]
        return subprocess.run(command, capture_output=True, text=True)

    def tokens(self, output, code):
        tokens = array.array(code)
        tokens.frombytes((self.folder / output).read_bytes())
        return list(tokens)

    def change_tokenizer(self, change):
        model = tokenizers.Tokenizer.from_file(str(self.tokenizer))
        change(model)
        model.save(str(self.tokenizer))

    def assert_fails(self, result, code, *words):
        self.assertEqual(result.returncode, code, result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)
        self.assertNotIn("Traceback", result.stderr)
        self.assertEqual([p.name for p in self.folder.iterdir() if p.suffix in (".u16", ".u32", ".partial")], [])


class Tokenize(ToolCase):
    def test_writes_the_files_in_order(self):
        files = [self.write("b.txt", b"two two\n"), self.write("a.txt", b"one")]
        for output in ("out.u16", "out.bin"):
            result = self.run_tool(output, *files)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(self.tokens(output, "H"), [3, 3, 2])
        self.assertIn("3 tokens", result.stdout)

    def test_writes_wide_tokens(self):
        result = self.run_tool("out.u32", self.write("a.txt", b"far one"))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.tokens("out.u32", "I"), [70000, 2])

    def test_puts_a_separator_after_each_file(self):
        files = [self.write("a.txt", b"one"), self.write("b.txt", b"two")]
        result = self.run_tool("out.u16", "--separator", "</s>", *files)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.tokens("out.u16", "H"), [2, 1, 3, 1])

    def test_reads_folders_in_order_of_paths_and_rows_by_field(self):
        self.write("data/b.jsonl", b'{"text": "one", "body": "two"}\n\n{"text": "two", "body": "one"}\n')
        self.write("data/a/c.txt", b"one one")
        self.write("data/.hidden.txt", b"far")
        self.assertEqual(self.run_tool("out.u16", "--separator", "</s>", self.folder / "data").returncode, 0)
        self.assertEqual(self.tokens("out.u16", "H"), [2, 2, 1, 2, 1, 3, 1])
        self.assertEqual(self.run_tool("out.u16", "--field", "body", self.folder / "data" / "b.jsonl").returncode, 0)
        self.assertEqual(self.tokens("out.u16", "H"), [3, 2])

    def test_follows_links_to_files_and_folders(self):
        self.write("elsewhere/b.txt", b"two")
        self.write("elsewhere/.hidden/c.txt", b"far")
        self.write("data/z.txt", b"one one")
        for name, target in ("file.txt", "elsewhere/b.txt"), ("folder", "elsewhere"), (".hidden", "elsewhere"):
            (self.folder / "data" / name).symlink_to(self.folder / target)
        result = self.run_tool("out.u16", "--separator", "</s>", self.folder / "data")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.tokens("out.u16", "H"), [3, 1, 3, 1, 2, 2, 1])

    def test_names_links_that_lead_nowhere_or_back(self):
        self.write("data/a/b.txt", b"one")
        link = self.folder / "data/a/link"
        link.symlink_to(self.folder / "data")
        self.assert_fails(self.run_tool("out.u16", self.folder / "data"), 1, str(link), "contains itself through a link")
        link.unlink()
        link.symlink_to(self.folder / "gone")
        self.assert_fails(self.run_tool("out.u16", self.folder / "data"), 1, str(link), "does not exist")

    def test_reads_parquet(self):
        try:
            import pyarrow.parquet
        except ImportError:
            self.skipTest("the pyarrow package is not installed")
        pyarrow.parquet.write_table(pyarrow.table({"text": ["one two", "two"]}), self.folder / "rows.parquet")
        self.assertEqual(self.run_tool("out.u16", self.folder / "rows.parquet").returncode, 0)
        self.assertEqual(self.tokens("out.u16", "H"), [2, 3, 3])

    def test_masks_prompts_out_of_the_loss(self):
        rows = self.write("rows.jsonl", b'{"q": "one two", "a": "two"}\n{"q": "two", "a": "one one"}\n')
        result = self.run_tool("out.u16", "--prompt-field", "q", "--answer-field", "a", "--separator", "</s>", rows)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.tokens("out.u16", "H"), [2, 3, 3, 1, 3, 2, 2, 1])
        self.assertEqual((self.folder / "out.u16.mask").read_bytes(), bytes([0, 0, 1, 1, 0, 1, 1, 1]))
        self.assertIn("8 tokens, 5 of them with a loss", result.stdout)

    def test_leaves_no_mask_of_other_tokens(self):
        """A run may end between any two replacements of files, or write no mask."""
        rows = self.write("rows.jsonl", b'{"q": "one two", "a": "two"}\n')
        fields = ("--prompt-field", "q", "--answer-field", "a")
        self.assertEqual(self.run_tool("out.u16", *fields, rows).returncode, 0)
        mask = self.folder / "out.u16.mask"
        spec = importlib.util.spec_from_file_location("tool", TOOL)
        tool = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(tool)
        seen = []

        def replace(source, target, replace=os.replace):
            seen.append((target.name, mask.exists()))
            replace(source, target)

        with unittest.mock.patch("os.replace", replace), contextlib.redirect_stdout(None):
            code = tool.main(["--tokenizer", str(self.tokenizer), "--output", str(self.folder / "out.u16"), *fields, rows])
        self.assertEqual((code, seen), (0, [("out.u16", False), ("out.u16.mask", False)]))
        self.assertEqual(mask.read_bytes(), bytes([0, 0, 1]))
        self.assertEqual(self.run_tool("out.u16", "--field", "a", rows).returncode, 0)
        self.assertEqual((self.tokens("out.u16", "H"), mask.exists()), ([3], False))
        mask.mkdir()  # A folder is no mask.
        self.assertEqual(self.run_tool("out.u16", "--field", "a", rows).returncode, 0)
        self.assertTrue(mask.is_dir())

    def write_chat_template(self):
        try:
            import transformers
        except ImportError:
            self.skipTest("the transformers package is not installed")
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(self.tokenizer))
        tokenizer.chat_template = (
            "{% for m in messages %}{% if m['role'] == 'judge' %}{{ raise_exception('no judges') }}{% endif %}"
            "{{ ('far ' if m['role'] == 'assistant' else '') + m['content'] + ' ' }}{% endfor %}"
            "{% if add_generation_prompt %}far {% endif %}"
        )
        tokenizer.save_pretrained(self.folder)

    def test_names_chats_that_are_none(self):
        self.write_chat_template()
        chat = ["--chat-field", "messages"]
        for row, words in (
            (b'{"messages": ["hi"]}', "message 1 in 'messages' is not an object"),
            (b'{"messages": [{"role": "user", "content": "one"}, {"role": "judge", "content": "two"}]}', "no judges"),
            (b'{"messages": [{"role": "user"}]}', "chat template"),
        ):
            self.assert_fails(self.run_tool("out.u32", *chat, self.write("a.jsonl", row)), 1, "a.jsonl: line 1", words)

    def test_masks_all_but_the_answers_of_chats(self):
        self.write_chat_template()
        rows = self.write("rows.jsonl", b'{"messages": [{"role": "user", "content": "one two"}, '
                                        b'{"role": "assistant", "content": "two"}, {"role": "user", "content": "one"}]}')
        result = self.run_tool("out.u32", "--chat-field", "messages", rows)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.tokens("out.u32", "I"), [2, 3, 70000, 3, 2])
        self.assertEqual((self.folder / "out.u32.mask").read_bytes(), bytes([0, 0, 0, 1, 0]))

    def test_separators_have_the_loss_of_what_they_follow(self):
        """A chat may end with a message of the user, or have no message."""
        self.write_chat_template()
        user, assistant = {"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}
        chats = [[user, assistant], [user, assistant, user], [], [user, {"role": "assistant", "content": ""}]]
        rows = self.write("rows.jsonl", "\n".join(json.dumps({"messages": chat}) for chat in chats).encode())
        result = self.run_tool("out.u32", "--chat-field", "messages", "--separator", "</s>", rows)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.tokens("out.u32", "I"), [2, 70000, 3, 1, 2, 70000, 3, 2, 1, 1, 2, 70000, 1])
        self.assertEqual((self.folder / "out.u32.mask").read_bytes(), bytes([0, 0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1]))

    def test_neither_cuts_nor_pads_texts(self):
        self.change_tokenizer(lambda model: (model.enable_truncation(3), model.enable_padding(length=5)))
        result = self.run_tool("out.u16", self.write("a.txt", b"one two two two one"), self.write("b.txt", b"two"))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.tokens("out.u16", "H"), [2, 3, 3, 3, 2, 3])

    def test_encodes_prompt_and_answer_as_one_text(self):
        """The tokenizer puts a mark before a text. Only a token that would have characters of both parts makes two texts of them."""
        def mark(model):
            words = {"<unk>": 0, "</s>": 1, "_": 2, "_one": 3, "_two": 4, "one": 5, "two": 6}
            model.model = tokenizers.models.WordLevel(words, unk_token="<unk>")
            model.normalizer = tokenizers.normalizers.Sequence(
                [tokenizers.normalizers.Prepend("_"), tokenizers.normalizers.Replace(" ", "_")])
            model.pre_tokenizer = tokenizers.pre_tokenizers.Split("_", "merged_with_next")

        self.change_tokenizer(mark)
        rows = [("one", " two"), ("one ", "two"), ("", "one"), ("\u00e9\U0001f600", " two one")]
        text = "\n".join(json.dumps({"q": prompt, "a": answer}) for prompt, answer in rows)
        arguments = ("--prompt-field", "q", "--answer-field", "a", "--separator", "</s>")
        result = self.run_tool("out.u16", *arguments, self.write("rows.jsonl", text.encode()))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.tokens("out.u16", "H"), [3, 4, 1, 3, 2, 4, 1, 3, 1, 0, 4, 3, 1])
        self.assertEqual(list((self.folder / "out.u16.mask").read_bytes()), [0, 1, 1, 0, 0, 1, 1, 1, 1, 0, 1, 1, 1])

    def test_prompts_have_the_tokens_that_they_have_alone(self):
        """The tokenizer, as that of GPT-2, takes two newlines for one token at the end of a text, and for two tokens before more text."""
        def split_spaces(model):
            words = ["Q", "?", "\u010a", "\u010a\u010a", "A", "B"]
            model.model = tokenizers.models.BPE({word: id for id, word in enumerate(words)}, [("\u010a", "\u010a")])
            model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)

        self.change_tokenizer(split_spaces)
        rows = [("Q?\n\n", "A"), ("Q?\n", "A"), ("", "A\n\nB"), ("Q", "")]
        text = "\n".join(json.dumps({"q": prompt, "a": answer}) for prompt, answer in rows)
        arguments = ("--prompt-field", "q", "--answer-field", "a")
        result = self.run_tool("out.u16", *arguments, self.write("rows.jsonl", text.encode()))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.tokens("out.u16", "H"), [0, 1, 3, 4, 0, 1, 2, 4, 4, 2, 2, 5, 0])
        self.assertEqual(list((self.folder / "out.u16.mask").read_bytes()), [0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1, 1, 0])

    def test_names_bad_rows(self):
        self.assert_fails(self.run_tool("out.u16", self.write("a.jsonl", b'{"text": "one"}\n{"body": "one"}\n')), 1,
                          "a.jsonl: line 2", "no field 'text'", "'body'")
        self.assert_fails(self.run_tool("out.u16", self.write("a.jsonl", b"one\n")), 1, "a.jsonl: line 1", "not JSON")
        self.assert_fails(self.run_tool("out.u16", self.write("a.jsonl", b'{"text": 1}\n')), 1, "line 1", "not text")
        self.assert_fails(self.run_tool("out.u16", "--prompt-field", "q", self.write("a.txt", b"one")), 2, "--answer-field")
        self.assert_fails(self.run_tool("out.u16", "--chat-field", "messages", self.write("a.jsonl", b"{}")), 1, "tokenizer")

    def test_names_rows_that_are_no_text(self):
        """JSON can have half of a pair of surrogates, and lists in each other without end."""
        for row, words in (
            (b'{"text": "one \\ud83d two"}', "the field 'text': is not Unicode text at character 4"),
            (b'{"text": ' + b"[" * 100000, "too many lists"),
        ):
            self.assert_fails(self.run_tool("out.u16", self.write("a.jsonl", b'{"text": "one"}\n' + row)), 1, "a.jsonl: line 2", words)
        self.assert_fails(self.run_tool("out.u16", "--separator", b"\xff", self.write("a.txt", b"one")), 1, "--separator: is not Unicode text")

    def test_names_a_chat_that_is_no_text(self):
        self.write_chat_template()
        chat = self.write("a.jsonl", b'{"messages": [{"role": "user", "content": "one \\udc00"}]}')
        self.assert_fails(self.run_tool("out.u32", "--chat-field", "messages", chat), 1, "a.jsonl: line 1", "'messages'", "is not Unicode text")

    def test_names_damaged_parquet(self):
        try:
            import pyarrow.parquet
        except ImportError:
            self.skipTest("the pyarrow package is not installed")
        path = self.folder / "rows.parquet"
        pyarrow.parquet.write_table(pyarrow.table({"text": ["one two", "two"]}), path)
        content = path.read_bytes()
        damaged = bytearray(content)
        damaged[8:40] = bytes(32)
        for text in (b"PAR1", b"one two", content[:-20], content[:-4] + b"xxxx", bytes(damaged)):
            path.write_bytes(text)
            self.assert_fails(self.run_tool("out.u16", path), 1, f"{path}: cannot be read")

    def test_names_bad_arguments(self):
        text = self.write("a.txt", b"one")
        self.assert_fails(self.run_tool("out.txt", text), 2, ".u16")
        self.assert_fails(self.run_tool("out.u16", "--separator", "<none>", text), 1, "<none>")
        self.assert_fails(self.run_tool("out.u16", self.folder / "gone.txt"), 1, "gone.txt")
        self.assert_fails(self.run_tool("out.u16", self.write("bad.txt", b"ab\xff")), 1, "bad.txt", "byte 2")
        self.tokenizer.write_text("{}")
        self.assert_fails(self.run_tool("out.u16", text), 1, "tokenizer.json")


class Generate(ToolCase):
    """The program is a script that prints tokens, and fails for --fail."""

    PROGRAM = """#!/bin/sh
echo "$@" > arguments
cat > ids
case "$*" in *--fail*) echo "weft: no" >&2; exit 3;; esac
printf '2\\n3\\n1\\n'
"""

    def program(self, name, text):
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(0o755)

    def generate(self, *arguments, program=PROGRAM, stdout=subprocess.PIPE):
        self.program("weft", program)
        # Ctrl-C ends the tool also where the shell has started the tests with `&`, and so without SIGINT.
        command = ["env", "--default-signal=INT", sys.executable, GENERATE, "--weft", self.folder / "weft", "--hf-model", self.folder, *arguments]
        environment = os.environ | {"PATH": f"{self.folder}:{os.environ['PATH']}"}
        return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, cwd=self.folder, env=environment)

    def test_encodes_the_prompt_and_prints_the_new_text(self):
        result = self.generate("--prompt", "two one", "--seed", "4")
        self.assertEqual((result.returncode, result.stdout), (0, "one two </s>\n"), result.stderr)
        self.assertIn("--prompt-tokens-file - --print-tokens --seed 4", (self.folder / "arguments").read_text())
        self.assertEqual((self.folder / "ids").read_text(), "3\n2")

    def test_starts_ranks_that_may_use_all_cores(self):
        self.program("mpirun", '#!/bin/sh\necho "$1 $2 $3 $4 $5, root: $OMPI_ALLOW_RUN_AS_ROOT" > launch\nshift 5\nexec "$@"\n')
        result = self.generate("-n", "2", "--prompt", "two one")
        self.assertEqual((result.returncode, result.stdout), (0, "one two </s>\n"), result.stderr)
        self.assertEqual((self.folder / "launch").read_text(), "--oversubscribe --bind-to none -n 2, root: 1\n")

    def test_prints_all_text_after_a_byte_that_spoils_the_character_before_it(self):
        """The tokenizer, as that of Llama 2, has tokens for bytes, and decodes neighbors among them together."""
        def fall_back_to_bytes(model):
            words = ["a", "b", "c", *(f"<0x{byte:02X}>" for byte in "字".encode())]
            model.model = tokenizers.models.BPE({word: id for id, word in enumerate(words)}, [], byte_fallback=True)
            model.decoder = tokenizers.decoders.Sequence([tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()])

        self.change_tokenizer(fall_back_to_bytes)
        for tokens, text in (("0 3 4 5 1", "a字b"), ("0 3 4 5 3 1 2", "a字\ufffdbc"), ("0 3 4 5 3", "a字\ufffd"),
                             ("0 3 4 5 3 3 4 5 1 3 2", "a字\ufffd\ufffd\ufffd\ufffdb\ufffdc")):
            result = self.generate("--prompt", "a", program="#!/bin/sh\nprintf '%s\\n' " + tokens + "\n")
            self.assertEqual((result.returncode, result.stdout), (0, text + "\n"), result.stderr)

    def test_returns_the_exit_code_of_the_program(self):
        self.assert_fails(self.generate("--prompt", "one", "--fail"), 3, "weft: no")
        self.assert_fails(self.generate("--prompt", "a " * 60_000, program="#!/bin/sh\nexit 3\n"), 3)  # Reads no prompt.
        self.assert_fails(self.generate("--prompt", "one", program="#!/bin/sh\nkill -KILL $$\n"), 137)

    def test_ends_without_a_traceback(self):
        """One line names what has failed, and Ctrl-C needs none."""
        for program, code, message in (
                ("cat >ids; kill -INT $PPID; exec sleep 100", 130, ""),
                ("echo two", 1, "generate.py: 'two', which weft has printed, is not a token id: is --weft the program?\n")):
            result = self.generate("--prompt", "one", program=f"#!/bin/sh\n{program}\n")
            self.assertEqual((result.returncode, result.stderr), (code, message))
        with open("/dev/full", "w") as full:
            result = self.generate("--prompt", "one", stdout=full)
        self.assertEqual((result.returncode, result.stderr), (1, "generate.py: standard output cannot be written: No space left on device\n"))

    def test_names_itself_if_a_package_is_missing(self):
        self.write("none/tokenizers.py", b"raise ImportError")
        venv.create(self.folder / "venv", symlinks=True)
        outside = "python3 -m venv venv && . venv/bin/activate && "
        for python, first in (os.path.realpath(sys.executable), outside), (self.folder / "venv/bin/python", ""):
            command = [python, GENERATE, "--hf-model", self.folder, "--prompt", "one"]
            result = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(self.folder / "none")})
            self.assert_fails(result, 1, f"generate.py needs the package tokenizers: {first}pip install tokenizers")

    def test_names_a_prompt_that_is_no_text(self):
        self.assert_fails(self.generate("--prompt", b"one \xff"), 1, "generate.py: --prompt: is not Unicode text at character 4")

    def test_names_a_tokenizer_that_cannot_be_read(self):
        other = self.folder / "other.json"
        self.assert_fails(self.generate("--prompt", "one", "--tokenizer", other), 3, f"generate.py: --tokenizer {other}: ")
        self.tokenizer.write_text("{}")
        self.assert_fails(self.generate("--prompt", "one"), 3, f"generate.py: --hf-model {self.tokenizer}: ")
        self.tokenizer.unlink()
        self.assert_fails(self.generate("--prompt", "one"), 3, f"generate.py: --hf-model {self.folder}: has no tokenizer.json: ",
                          "weft generate --prompt", "--tokenizer PATH")


if __name__ == "__main__":
    unittest.main(testRunner=ConcurrentRunner(jobs=1))
