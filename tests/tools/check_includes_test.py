#!/usr/bin/python3
"""Each rule of tools/check_includes.py, shown by a small tree that keeps it and one that breaks it."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import check_includes  # noqa: E402

# A tree that keeps every rule.
SOUND = {
    "LICENSE": "Apache License\n",
    "README.md": "Licence: Apache-2.0\n",
    "include/unimem/unimem.hpp": "#include <unimem/core/a.hpp>\n#include <unimem/core/version.hpp>\n"
                                 "#include <unimem/device/d.hpp>\n",
    "docs/headers.md": "# Headers\n\n## All\n\n`core/a.hpp`, `core/version.hpp`, `device/d.hpp`\n\n## Others\n\n`core/detail/o.hpp`\n",
    "include/unimem/core/detail/o.hpp": "#include <vector>\n",
    "include/unimem/core/a.hpp": "#include <vector>\n",
    "include/unimem/device/d.hpp": "#include <unimem/core/a.hpp>\n",
    "src/device/d.cpp": '#include "device/d.hpp"\n#include <fmt/format.h>\n#include <CL/cl.h>\n',
    "tests/device/d_test.cpp": "#include <gtest/gtest.h>\n#include <unimem/core/a.hpp>\n",
    "apps/unimem/main.cpp": "#include <CLI/CLI.hpp>\n#include <unimem/unimem.hpp>\n",
}


class CheckIncludes(unittest.TestCase):
    def violations(self, changes: "dict[str, str | bytes | None]") -> "list[check_includes.Violation]":
        """What is found in the sound tree after `changes` (None removes a file)."""
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            for name, text in {**SOUND, **changes}.items():
                if text is None:
                    continue
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_bytes(text if isinstance(text, bytes) else text.encode())
            return check_includes.check_tree(root)

    def assert_caught(self, rule: str, path: str, text: "str | bytes", line: int = 1) -> None:
        found = self.violations({path: text})
        self.assertEqual([(v.rule, v.path, v.line) for v in found], [(rule, path, line)])

    def test_a_sound_tree_has_no_violation(self):
        self.assertEqual(self.violations({}), [])

    def test_mpi_stays_on_its_floor(self):
        page = SOUND["docs/headers.md"] + "\n`mpi.hpp`, `cluster/c.hpp`\n"
        sound = {"docs/headers.md": page, "include/unimem/mpi.hpp": "#include <unimem/cluster/c.hpp>\n",
                 "include/unimem/cluster/c.hpp": "#include <unimem/device/d.hpp>\n#include <mpi.h>\n#include <mpi-ext.h>\n",
                 "tests/cluster/c_test.cpp": "#include <unimem/mpi.hpp>\n#include <mpi.h>\n"}
        self.assertEqual(self.violations(sound), [])
        self.assert_caught("mpi", "src/device/m.cpp", "#include <mpi.h>\n")
        self.assert_caught("mpi", "include/unimem/core/a.hpp", "#include <mpi.h>\n")

    def test_a_folder_may_not_look_up(self):
        self.assert_caught("direction", "src/core/a.cpp", "#include <vector>\n#include <unimem/device/d.hpp>\n", 2)
        self.assert_caught("direction", "src/pool/p.cpp", '#include "manager/m.hpp"\n')

    def test_a_folder_may_not_look_sideways(self):
        self.assert_caught("direction", "src/coherence/c.cpp", "#include <unimem/device/d.hpp>\n")
        self.assert_caught("direction", "src/kernel/k.cpp", '#include "share/s.hpp"\n')

    def test_a_folder_may_look_down_at_public_and_private_headers(self):
        self.assertEqual(self.violations({"src/stream/s.cpp": '#include "core/x.hpp"\n#include <unimem/device/d.hpp>\n'}), [])

    def test_a_test_stands_on_the_floor_of_what_it_tests(self):
        self.assert_caught("direction", "tests/pool/p_test.cpp", "#include <unimem/buffer/b.hpp>\n")
        self.assertEqual(self.violations({"tests/pool/p_test.cpp": '#include "device/conformance.hpp"\n'}), [])

    def test_a_folder_without_a_floor_is_refused(self):
        self.assert_caught("direction", "src/utils/u.cpp", "#include <vector>\n")

    def test_a_public_header_sees_no_third_party_header(self):
        for header in ("<fmt/format.h>", "<spdlog/spdlog.h>", "<unistd.h>", '"device/private.hpp"'):
            with self.subTest(header):
                found = self.violations({"include/unimem/device/d.hpp": f"#include {header}\n"})
                self.assertEqual([v.rule for v in found], ["public"])

    def test_a_public_header_sees_no_private_header_of_its_own_folder(self):
        self.assert_caught("public", "include/unimem/device/d.hpp", '#include "device/queue_control.hpp"\n')

    def test_public_headers_are_included_in_angle_brackets(self):
        self.assert_caught("private", "src/device/d.cpp", '#include "unimem/core/a.hpp"\n')

    def test_an_include_may_not_climb(self):
        self.assert_caught("private", "src/device/cpu/c.cpp", '#include "../sim/s.hpp"\n')

    def test_faces_see_public_headers_alone(self):
        self.assert_caught("faces", "apps/unimem/main.cpp", '#include "device/queue_control.hpp"\n')
        self.assert_caught("faces", "examples/01_x.cpp", '#include "core/log.hpp"\n')

    def test_driver_headers_stay_in_the_device_folder(self):
        self.assert_caught("drivers", "src/kernel/k.cpp", "#include <CL/cl.h>\n")
        self.assert_caught("drivers", "apps/unimem/main.cpp", "#include <cuda.h>\n")
        self.assert_caught("drivers", "src/device/k.cpp", "#include <cuda/memory_resource>\n")
        self.assertEqual(self.violations({"tests/pool/t.cpp": "#include <cuda/memory_resource>\n"}), [])

    def test_the_headers_page_names_every_public_header(self):
        for name in ("pool/p.hpp", "pool/detail/p.hpp"):
            found = self.violations({f"include/unimem/{name}": "#include <span>\n"})
            self.assertEqual([(v.rule, v.path) for v in found], [("headers", "docs/headers.md")])
            self.assertIn(f"unimem/{name}", found[0].message)
        found = self.violations({"include/unimem/device/d.hpp": None})
        self.assertEqual([(v.rule, v.line) for v in found], [("umbrella", 3), ("headers", 1)])

    def test_the_umbrella_includes_the_pages_first_table(self):
        umbrella = SOUND["include/unimem/unimem.hpp"]
        self.assert_caught("umbrella", "include/unimem/unimem.hpp", umbrella.replace("#include <unimem/device/d.hpp>\n", ""))
        self.assert_caught("umbrella", "include/unimem/unimem.hpp", umbrella + "#include <unimem/core/detail/o.hpp>\n", 4)

    def test_an_example_includes_nothing_of_detail(self):
        self.assert_caught("faces", "examples/01_x.cpp", "#include <unimem/core/detail/o.hpp>\n")

    def test_the_library_does_not_include_the_umbrella(self):
        self.assert_caught("umbrella", "src/device/d.cpp", "#include <unimem/unimem.hpp>\n")

    def test_what_is_commented_or_quoted_is_no_include(self):
        text = ('// #include <unimem/device/d.hpp>\n/*\n#include <unimem/device/d.hpp>\n*/\n'
                'auto k = R"cl(\n#include <unimem/device/d.hpp>\n)cl";\n')
        self.assertEqual(self.violations({"src/core/a.cpp": text}), [])

    def test_a_literal_that_looks_like_a_comment_hides_nothing(self):
        text = 'auto glob = "src/*.cpp";\n#include <unimem/device/d.hpp>\n// */\n'
        self.assert_caught("direction", "src/core/a.cpp", text, 2)

    def test_files_are_plain(self):
        self.assert_caught("files", "src/core/a.cpp", b"int a;\r\n")
        self.assert_caught("files", "src/core/a.cpp", b"int a;\n\tint b;\n", 2)
        self.assert_caught("files", "docs/a.md", b"a line \n")
        self.assert_caught("files", "docs/a.md", b"no newline", 1)

    def test_a_link_leads_somewhere(self):
        self.assert_caught("links", "docs/a.md", "see\n[the map](gone.md#part)\n", 2)
        self.assertEqual(self.violations({"docs/a.md": "[up](../README.md#top) [out](https://example.org/x) [here](#part)\n"}), [])

    def test_the_licence_is_there(self):
        self.assertEqual([v.path for v in self.violations({"LICENSE": None})], ["LICENSE"])
        self.assertEqual([v.path for v in self.violations({"README.md": "hello\n"})], ["README.md"])


if __name__ == "__main__":
    unittest.main()
