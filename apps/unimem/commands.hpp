#pragma once

#include "command_line.hpp"

namespace unimem::cli {

// Each carries its command out, writes the answer to standard output, and returns the exit code. What fails is thrown:
// main() says it once, for all of them.

int run(PrintText const& text);
int run(BenchCommand const& command);
int run(DevicesCommand const& command);
int run(PsCommand const& command);
int run(ReplayCommand const& command);
int run(RunCommand const& command);
int run(VersionCommand const& command);

}  // namespace unimem::cli
