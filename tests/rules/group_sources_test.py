#!/usr/bin/env python3
"""Tests of group_sources.py on small trees: sources share a group only if each means what it means alone."""
import contextlib
import io
import os
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools" / "cmake"))
import group_sources
from small_tree import SmallTree


def anonymous(text):
    return f"namespace weft {{\nnamespace {{\n{text}\n}}  // namespace\n}}  // namespace weft\n"


def mention(name):
    return f"namespace weft {{\nauto Mention() {{ return {name}; }}\n}}  // namespace weft\n"


class GroupSources(SmallTree):
    def groups(self, *texts):
        """The groups of sources with these texts, as lists of their numbers."""
        paths = [self.write(f"src/core/{number}.cc", text) for number, text in enumerate(texts)]
        with contextlib.redirect_stderr(io.StringIO()) as self.messages:
            found = group_sources.group_sources(group_sources.Tree(self.root), paths)
        return [[paths.index(path) for path in group] for group in found]

    def assert_together(self, *texts):
        self.assertEqual(self.groups(*texts), [list(range(len(texts)))])

    def assert_apart(self, *texts):
        self.assertEqual(self.groups(*texts), [])
        self.assertEqual(self.messages.getvalue(), "")

    def assert_alone(self, text):
        self.assertEqual(self.groups(text, "int Count();\n"), [])
        self.assertIn("0.cc is compiled alone", self.messages.getvalue())

    def test_groups_sources_with_different_names(self):
        self.assert_together(anonymous("int Size() { return 1; }"), anonymous("int Count() { return 2; }"))

    def test_separates_sources_that_declare_the_same_function(self):
        self.assert_apart(anonymous("int Size(int a) { return a; }"), anonymous("template <class T>\nT Size(T a) { return a; }"))

    def test_separates_sources_that_declare_the_same_constant(self):
        self.assert_apart(anonymous("constexpr int kBlock = 1;"), anonymous("constexpr std::array<int, 2> kBlock{1, 2};"))
        self.assert_apart("static int clock = 1;\n", anonymous("int time, clock;"))

    def test_groups_sources_that_mention_a_function_of_another_which_has_constants_inside(self):
        self.assert_together("int Size(int a) { static constexpr int kSize = 1; return kSize; }\n", mention("Size(1)"))
        self.assert_apart("static int Size(int a) { return a; }\n", mention("Size(1)"))
        self.assert_apart("constexpr int Size(int a) { return a; }\n", mention("Size(1)"))

    def test_separates_a_source_that_mentions_what_another_declares_for_itself(self):
        for declaration in ("class Clock : public Base {};", "struct Clock;", "enum class Clock { kA };", "using Clock = int;",
                            "enum { kA, Clock };", "enum Clock : int { kA };", "struct { int a; } Clock;", "int Clock(int a);",
                            "std::map<int, std::vector<int>> Clock(int a) { return {}; }", "const Time Clock{1};", "int Clock[2];",
                            "template <typename T>\nstruct Clock {};", "namespace Clock = chrono;"):
            with self.subTest(declaration):
                self.assert_apart(anonymous(declaration), mention("Clock"))

    def test_groups_sources_with_equal_aliases_of_a_namespace(self):
        self.assert_together("namespace time = std::chrono;\nint Size();\n", "namespace time = std::chrono;\nint Count();\n")
        self.assert_apart("namespace time = std::chrono;\nint Size();\n", "namespace time = absl::civil;\nint Count();\n")

    def test_needs_no_more_groups_for_a_bad_order_of_the_sources(self):
        # The second clashes with the third, the third with the fourth, the fourth with the first.
        first, second = anonymous("int A();"), anonymous("int B();")
        third, fourth = anonymous("int B();\nint C();"), anonymous("int A();\nint C();")
        self.assertEqual(sorted(self.groups(first, second, third, fourth)), [[0, 2], [1, 3]])

    def test_groups_the_source_that_defines_a_python_module(self):
        for macro in ("NB_MODULE", "PYBIND11_MODULE"):
            with self.subTest(macro):
                self.assert_together(f"{macro}(_core, module) {{\n  module.def(1);\n}}\n", "int Count();\n")

    def test_finds_the_names_after_initializers_and_bodies(self):
        for statement in ("const auto list = {1, 2};", "A::A() : x_{1}, y_(2), z_{3} {}", "bool operator==(A a, A b) { return a(b); }",
                          "A& A::operator=(A a) { return a; }", "auto add = [](int a) { return a; };",
                          "struct A { int x() { return 1; } };",
                          "template <>\nstruct Hash<A> {};", "TEST(Suite, Works) {}", "static_assert(sizeof(int) == 4);",
                          "enum class A { kA = 1 };", "[[maybe_unused]] int a;", "template class A<int>;"):
            with self.subTest(statement):
                self.assert_apart(anonymous(statement + "\nint Clock = 1;"), mention("Clock"))

    def test_ignores_members_comments_and_text(self):
        self.assert_together(anonymous("int Size() { return 1; }"),
                             '// Size\nnamespace weft {\nint A::Count() { return b.Size() + Count("Size", R"(Size)"); }\n}\n')

    def test_ignores_names_after_those_of_types_and_other_libraries(self):
        for mentioned in ("Table::Size()", "std::Size()", "absl::Size()", "::testing::Size()"):
            with self.subTest(mentioned):
                self.assert_together(anonymous("int Size() { return 1; }"), f"int Count() {{ return {mentioned}; }}\n")
        for mentioned in ("::Size()", "weft::Size()", "testing::Size()", "weft::testing::Size()", "::weft::testing::Size()"):
            with self.subTest(mentioned):
                self.assert_apart(anonymous("int Size() { return 1; }"), f"int Count() {{ return {mentioned}; }}\n")

    def test_does_not_take_the_definition_of_a_member_for_a_name(self):
        self.assert_together(anonymous("int A::Size() const { return 1; }"), anonymous("int B::Size() const { return 2; }"))

    def test_groups_sources_with_equal_using_declarations(self):
        self.assert_together(anonymous("using ::testing::Each;"), anonymous("using ::testing::Each;\nusing ::testing::Not;"))
        self.assert_apart(anonymous("using ::testing::Each;"), anonymous("using ::other::Each;"))
        self.assert_apart(anonymous("using ::testing::Each;"), anonymous("int Each(int x) { return x; }"))

    def test_separates_tests_and_instances_of_the_same_name(self):
        test = "namespace {\nTEST(Wire, Works) {}\n}\n"
        self.assert_apart(test, test)
        self.assert_together(test, "namespace {\nTEST(Wire, Fails) {}\nTEST_F(Wires, Works) {}\n}\n")
        instance = "namespace {\nINSTANTIATE_TEST_SUITE_P(All, Wire, ::testing::Values(1));\n}\n"
        self.assert_apart(instance, instance)

    def test_reads_the_headers_that_only_one_source_includes(self):
        self.write("include/weft/core/size.h", '#pragma once\n#include "src/core/inner.h"\n')
        self.write("src/core/inner.h", "#pragma once\nnamespace weft {\nint Size(int a);\n}\n")
        include = '#include "weft/core/size.h"\n'
        own = anonymous("int Size(double a) { return 0; }")
        self.assert_apart(own, include)
        self.assert_together(include + own, include + "int Count();\n")

    def test_separates_a_source_that_mentions_a_name_of_a_header_that_only_another_includes(self):
        self.write("include/weft/core/line.h", "#pragma once\n#define LINE 64\nnamespace weft {\ninline constexpr int kLine = LINE;\n}\n")
        include = '#include "weft/core/line.h"\n'
        local = "int Count() { constexpr int kLine = 4; return kLine; }\n"  # A warning says that this hides another name.
        self.assert_apart(include, local)
        self.assert_apart(include, mention("LINE"))
        self.assert_apart(include, mention("Table::LINE"))
        self.assert_together(include, include + local)

    def test_groups_a_source_that_calls_a_function_of_which_another_includes_an_overload_for_an_enumeration(self):
        call = "auto size = Name(Size{});\n"
        kind = "enum class Kind { kA };\n"
        self.write("src/core/kind.h", kind)
        for declaration in (kind + "const char* Name(Kind kind);\n", kind + "inline const char* Name(Kind) { return nullptr; }\n",
                            '#include "src/core/kind.h"\nstd::string Name(Kind kind);\n'):
            with self.subTest(declaration):
                self.write("src/core/a.h", declaration)
                self.assert_together(call, '#include "src/core/a.h"\nint Count();\n')
        for declaration in ("const char* Name(int kind);\n", kind + "const char* Name(Kind kind, int size);\n",
                            kind + "const char* Name(Kind kind);\nconst char* Name(int size);\n", kind + "inline int Name = 1;\n",
                            kind + "template <typename T>\nint Name(T value);\n", kind + "void Name(Kind* kind);\n",
                            kind + "struct Name {};\nconst char* Name(Kind kind);\n",
                            kind + "struct Name {};\nusing Function = std::function<Name(Kind)>;\n"):
            with self.subTest(declaration):
                self.write("src/core/a.h", declaration)
                self.assert_apart(call, '#include "src/core/a.h"\nint Count();\n')

    def header_checks(self, **headers):
        """Groups of the sources that check these headers, as lists of names."""
        names = list(headers)
        for name, text in headers.items():
            self.write(f"include/weft/core/{name}.h", f"#pragma once\n{text}\n")
        groups = self.groups(*(f'#include "weft/core/{name}.h"\n' for name in names))
        return [[names[number] for number in group] for group in groups]

    def compiles(self, names):
        unit = self.write("unit.cc", "".join(f'#include "weft/core/{name}.h"\n' for name in names))
        command = [os.environ.get("CXX", "c++"), "-std=c++20", "-fsyntax-only", f"-I{self.root}/include", unit]
        return subprocess.run(command, capture_output=True).returncode == 0

    def test_finds_a_missing_include_in_a_header_of_a_group(self):
        size = "enum class Size { kA };\nvoid Name(Size);\nvoid Unit();"
        other = "namespace other {\nstruct Unit {};\n}"  # Clashes with the first.
        user = "inline void Use() { Name(Size{}); }"
        (group,) = self.header_checks(size=size, other=other, user='#include "weft/core/size.h"\n' + user)
        self.assertEqual(group, ["size", "user"])
        self.assertTrue(self.compiles(group))
        (group,) = self.header_checks(size=size, other=other, user=user)
        self.assertEqual(group, ["other", "user"])
        self.assertFalse(self.compiles(group))

    def test_separates_header_checks_if_one_header_uses_what_only_the_other_includes(self):
        kind = "enum class Kind { kA };\n"
        self.write("include/weft/core/kind.h", kind)
        include = '#include "weft/core/kind.h"\n'
        for provider, user in (("struct Size {};", "void Use(const Size& size);"),
                               ("#define SIZE 1", "inline int size = SIZE;"), ("#define SIZE 1", "#define USE Table::SIZE"),
                               (include, "void Use(Kind kind);"),
                               (include + "void Name(Kind kind);", include + "inline void Use() { Name(Kind::kA); }")):
            with self.subTest(provider):
                self.assertEqual(self.header_checks(provider=provider, user=user), [])
                self.write("include/weft/core/indirect.h", user)
                self.assertEqual(self.header_checks(provider=provider, user='#include "indirect.h"'), [])
                self.assertEqual(self.header_checks(provider=provider, user='#include "weft/core/provider.h"\n' + user),
                                 [["provider", "user"]])

    def test_separates_header_checks_if_one_header_declares_something_without_a_name(self):
        for text in ("bool operator!(Kind kind);", "template <>\nstruct Hash<int> {};", "inline int Table::Size() { return 1; }"):
            with self.subTest(text):
                self.assertEqual(self.header_checks(provider=text, other="int Count();"), [])

    def test_groups_a_source_that_knows_a_type_which_a_header_of_another_declares(self):
        self.write("src/core/declares.h", "namespace weft {\nclass Clock;\nvoid Use(Clock& clock);\n}\n")
        self.write("src/core/knows.h", "namespace weft {\nclass Clock {};\n}\n")
        self.write("src/core/names.h", "namespace weft {\nint Clock();\n}\n")
        declares = '#include "src/core/declares.h"\nint Count();\n'
        self.assert_together(declares, '#include "src/core/knows.h"\n' + mention("Clock{}"))
        self.assert_apart(declares, '#include "src/core/names.h"\n' + mention("Clock()"))
        self.assert_apart(declares, mention("Clock{}"))
        self.assert_apart('#include "src/core/knows.h"\nint Count();\n', '#include "src/core/declares.h"\n' + mention("Clock{}"))

    def test_separates_a_source_that_mentions_what_another_declares_extern(self):
        for declaration in ("extern const Time Clock;", 'extern "C" int Clock(int a) noexcept {}', "extern int Clock[2];"):
            with self.subTest(declaration):
                self.assert_apart(f"namespace weft {{\n{declaration}\n}}\n", mention("Clock"))
                self.assert_together(f"namespace weft {{\n{declaration}\n}}\n", mention("Size"))

    def test_leaves_what_it_does_not_understand_alone(self):
        for text in ("#define SIZE 1\n", "#if SIZE\n#endif\n", "using namespace std;\n", "REGISTER(Size);\n", 'extern "C" {\n}\n', "extern template class Size<int>;\n",
                     "namespace weft {\n", "}\n", "int x = (1;\n", "typedef int Size;\n"):
            with self.subTest(text):
                self.assert_alone(text)

    def test_bounds_the_size_of_a_group(self):
        sources = [f"int Count{number}();\n" for number in range(group_sources.MAX_SOURCES + 2)]
        self.assertEqual([len(group) for group in self.groups(*sources)], [group_sources.MAX_SOURCES, 2])
        long = "\n" * (group_sources.MAX_LINES // 2 + 1)
        self.assertEqual(self.groups(long, long, "int Count();\n"), [[0, 2]])

    def test_prints_the_groups_of_each_target_without_shared_sources(self):
        a, b, c = (self.write(f"src/core/{name}.cc", f"int {name}();\n") for name in "abc")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            group_sources.main(self.root, [f"one;{a};{b};{c}\n", f"two;{c}\n"])
        self.assertEqual(printed.getvalue(), f"one|{a}|1\none|{b}|1\n")


if __name__ == "__main__":
    unittest.main()
