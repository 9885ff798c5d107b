#!/usr/bin/python3
"""What tools/check_unity.py finds, shown by pairs of sources that a unity build would refuse, and by such as it takes."""

import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import check_unity  # noqa: E402


def anonymous(text: str) -> str:
    return f"namespace unimem {{\nnamespace {{\n{text}\n}}\n}}\n"


def names(text: str) -> "list[str]":
    return [str(name) for name in check_unity.names_of(text)]


class CheckUnity(unittest.TestCase):
    def assert_clash(self, one: str, other: str, name: str) -> None:
        found = check_unity.check_target({"a.cpp": anonymous(one), "b.cpp": anonymous(other)})
        self.assertEqual(found, [f"b.cpp:3: {name} is in a.cpp:3 too; a unity build may compile both as one"])

    def assert_none(self, one: str, other: str) -> None:
        self.assertEqual(check_unity.check_target({"a.cpp": one, "b.cpp": other}), [])

    def test_equal_functions_clash(self):
        self.assert_clash("int f(int a) { return a; }", "int f(int other) noexcept { return 2; }", "f(int)")
        self.assert_clash("template <class T>\nvoid f(std::vector<T, A<T>> const& all) {}".replace("\n", " "),
                          "template <class U> void f(std::vector<T, A<T>> const& some = {}) {}",
                          "f(std :: vector < T , A < T > > const &)")
        self.assert_clash("bool operator==(A const& a, A const& b) { return true; }",
                          "bool operator==(A const&, A const&) { return false; }", "operator==(A const &, A const &)")

    def test_overloads_do_not(self):
        self.assert_none(anonymous("int f(int a) { return a; }"), anonymous("int f(long a) { return 1; }\nint f() { return 0; }"))

    def test_equal_types_clash(self):
        self.assert_clash("struct A { int a; };", "class A final : public B {};", "A")
        self.assert_clash("enum class A : char { one };", "union A { int a; };", "A")
        self.assert_clash("struct A {};", "constexpr int A = 1;", "A")

    def test_equal_constants_and_variables_clash(self):
        self.assert_clash("constexpr std::size_t most = 5;", "constexpr std::array most{1, 2};", "most")
        self.assert_clash("thread_local A* most = nullptr;", "int most[3];", "most")
        self.assert_clash("constexpr int a = f(1, 2), most{2};", "char const* const most = \"}\";", "most")
        self.assert_clash("auto const most = [](int a) { return a; };", "int most(int b) { return b; }", "most(int)")

    def test_aliases_clash_where_they_differ(self):
        self.assert_clash("using A = int;", "using A = long;", "A")
        self.assert_clash("using A = int;", "struct A {};", "A")
        self.assert_none(anonymous("using A = std::vector<int>;"), anonymous("using A = std::vector<int>;"))

    def test_other_namespaces_are_other_names(self):
        self.assert_none(anonymous("int a = 1;"), "namespace unimem::detail {\nnamespace {\nint a = 1;\n}\n}\n")

    def test_what_has_internal_linkage_without_a_namespace_clashes_too(self):
        found = check_unity.check_target({"a.cpp": "namespace n {\nconstexpr int a = 1;\nstatic int f() { return 1; }\n}\n",
                                          "b.cpp": "namespace n {\nconstexpr int a = 1;\nstatic int f() { return 1; }\n}\n"})
        self.assertEqual([line.split(" is in ")[0] for line in found], ["b.cpp:2: a", "b.cpp:3: f()"])
        self.assertEqual(names("namespace n { int f() { return 1; } inline constexpr int a = 1; extern int b; }"), [])

    def test_members_and_declarations_are_no_definitions(self):
        text = anonymous("struct A;\nint f(int);\nA::A(int a) : b_(a), c_{a} { int inner = 1; }\nint A::g() { return 1; }\n"
                         "using std::move;\ntemplate <> struct B<int> {};\nint after = 1;")
        self.assertEqual(names(text), ["after"])

    def test_literals_comments_and_macros_hide_nothing(self):
        text = anonymous('constexpr char const* a = R"(\n} int no = 1; {\n)";\n// int no = 1;\n#define NO(x) \\\n  { x\n'
                         "constexpr char b = '}';\nint c = 1'000;")
        self.assertEqual(names(text), ["a", "b", "c"])

    def test_a_folder_is_one_target(self):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            for name in ("src/stream/a.cpp", "src/stream/deeper/b.cpp", "src/file/c.cpp", "python/src/d.cpp", "tests/stream/e.cpp"):
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(anonymous("int a = 1;"), encoding="utf-8")
            found = check_unity.check_tree(root)
            self.assertEqual([line.split(": ")[0] for line in found], ["src/stream/deeper/b.cpp:3"])
            self.assertEqual(check_unity.main([folder]), 1)
            (root / "src/stream/a.cpp").unlink()
            self.assertEqual(check_unity.main([folder]), 0)

    def test_the_tree_has_none(self):
        self.assertEqual(check_unity.check_tree(ROOT), [])
        defined = [name for path in (ROOT / "src").rglob("*.cpp") for name in names(path.read_text(encoding="utf-8"))]
        self.assertGreater(len(defined), 500, "the sources have hundreds, or this looks at nothing")


if __name__ == "__main__":
    unittest.main()
