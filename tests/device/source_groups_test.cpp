#include "device/source_groups.hpp"

#include <unimem/core/error.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace unimem::detail {
namespace {

/// What `refuse_divergent_barriers` says of the kernel `f`; "none" if nothing.
std::string divergence_in(std::string const& source, std::string const& entry = "f") {
  try {
    refuse_divergent_barriers(source, entry);
  } catch (KernelError const& error) {
    return error.reason;
  }
  return "none";
}

TEST(DivergentBarriers, AreSeenUnderAnIfThatAsksForTheItem) {
  for (std::string const body : {
           "if (UNIMEM_LOCAL_X < 16) { x[0] = 1; UNIMEM_BARRIER(); }",
           "if (UNIMEM_LOCAL_X < 16) UNIMEM_BARRIER();",
           "if (i < 3 && (UNIMEM_LOCAL_Y) == 0) for (int k = 0; k < 3; ++k) { s[k] = f(k); UNIMEM_BARRIER(); }",
           "if (UNIMEM_LOCAL_NUMBER == 0) { { x[0] = 1; } } else { UNIMEM_BARRIER(); }",
           "if (UNIMEM_LOCAL_Z == 0) x[0] = 1; else if (n) UNIMEM_BARRIER();",
           "if (n) if (UNIMEM_LOCAL_X == 0) { x[0] = unimem_group_max(v, scratch); }",
       }) {
    EXPECT_THAT(divergence_in("UNIMEM_KERNEL f(UNIMEM_BUFFER(float, x)) {" + body + "}"),
                ::testing::AllOf(::testing::HasSubstr("under if ("), ::testing::HasSubstr("UNIMEM_LOCAL_")))
        << body;
  }
  for (std::string const function : {
           "UNIMEM_FUNCTION void w() { x = 1; UNIMEM_BARRIER(); }",
           "UNIMEM_FUNCTION void v(int n) { UNIMEM_BARRIER(); }\nUNIMEM_FUNCTION void w() { v(3); }",
           "UNIMEM_FUNCTION float w() { if (n) { x = 1; } for (;;) x; float y = unimem_group_sum(x, s); return y; }",
       }) {
    EXPECT_THAT(divergence_in(function + "\nUNIMEM_KERNEL f() { if (UNIMEM_LOCAL_X < 16) w(); }"),
                ::testing::StartsWith("uses w under if (UNIMEM_LOCAL_X < 16)"))
        << function;
  }
  EXPECT_EQ(
      divergence_in("UNIMEM_FUNCTION void g() { if (UNIMEM_LOCAL_X == 1) UNIMEM_BARRIER(); }\n"
                    "UNIMEM_KERNEL f() { g(); }"),
      "uses UNIMEM_BARRIER under if (UNIMEM_LOCAL_X == 1): where some items of a group pass it by, the others wait for "
      "them. All must come to it, or none");
}

TEST(DivergentBarriers, AreNotSeenWhereAllMayCome) {
  for (std::string const body : {
           "if (UNIMEM_LOCAL_X < 16) { x[0] = 1; } UNIMEM_BARRIER();",
           "if (UNIMEM_LOCAL_X < 16) x[0] = 1; UNIMEM_BARRIER();",
           "if (UNIMEM_GROUP_X == 0) { UNIMEM_BARRIER(); }",
           "if (n > UNIMEM_GROUP_SIZE_X) UNIMEM_BARRIER();",
           "if (UNIMEM_LOCAL_X < 16) { x[0] = 1; } else x[1] = 2; for (;;) { UNIMEM_BARRIER(); }",
           "for (int i = 0; i < n; ++i) { if (UNIMEM_LOCAL_X == i) x[i] = 1; UNIMEM_BARRIER(); }",
           "// if (UNIMEM_LOCAL_X < 16) { UNIMEM_BARRIER(); }\n",
           "\n#define ADD(n) if (UNIMEM_LOCAL_X < n) s[UNIMEM_LOCAL_X] += s[n]\n#define SYNC() UNIMEM_BARRIER()\n",
           "\n#define FIRST if (UNIMEM_LOCAL_X == 0)\n#define SYNC UNIMEM_BARRIER()\nFIRST x[0] = 1; SYNC;",
           "if (unimem_group_sum(UNIMEM_LOCAL_X == 3 ? v : 0, s) > 0) { UNIMEM_BARRIER(); }",
           "if (UNIMEM_ITEM_X - UNIMEM_LOCAL_X == 0) { UNIMEM_BARRIER(); }",
           "\n#ifdef A\nif (UNIMEM_LOCAL_X < 4) {\n#else\nif (UNIMEM_LOCAL_X < 8) {\n#endif\nx[0] = 1; } "
           "UNIMEM_BARRIER();",
           "\n#if 0\nif (UNIMEM_LOCAL_X < 4) { UNIMEM_BARRIER(); }\n#endif\n",
           "\n#define STORE(v) s[0] = v;\nif (UNIMEM_LOCAL_X == 0) STORE(3)\nUNIMEM_BARRIER();",
           "\n#define STORE { s[0] = 3; }\nif (UNIMEM_LOCAL_X == 0) STORE\nUNIMEM_BARRIER();",
           "\n#define STORE(v) s[0] = v;\nif (UNIMEM_LOCAL_X == 0) STORE(3) x = unimem_group_sum(y, s);",
           "\n#define STORE(v) s[0] = v;\nif (UNIMEM_LOCAL_X == 0) STORE(3) else STORE(4) UNIMEM_BARRIER();",
           "if (UNIMEM_LOCAL_X",
           "if (UNIMEM_LOCAL_X == 0) {",
           "if",
           "if (",
           "if (UNIMEM_LOCAL_X) x = 1",
       }) {
    EXPECT_EQ(divergence_in("UNIMEM_KERNEL f(UNIMEM_BUFFER(float, x)) {" + body + "}"), "none") << body;
  }
  for (std::string const function : {
           "UNIMEM_FUNCTION void w(int n) { if (n) UNIMEM_BARRIER(); }",
           "UNIMEM_FUNCTION void w(int n) { if (n) return; UNIMEM_BARRIER(); }",
           "UNIMEM_FUNCTION void w(int n) { n ? v() : UNIMEM_BARRIER(); }",
           "UNIMEM_FUNCTION void w(int n) { for (int i = 0; i < n; ++i) { UNIMEM_BARRIER(); } }",
           "UNIMEM_FUNCTION void w(int n) { x = 1; }\nUNIMEM_FUNCTION void w(float n) { UNIMEM_BARRIER(); }",
           "\n#if A\nUNIMEM_FUNCTION void w() { UNIMEM_BARRIER(); }\n#else\nUNIMEM_FUNCTION void w() {}\n#endif\n",
       }) {
    EXPECT_EQ(divergence_in(function + "\nUNIMEM_KERNEL f() { if (UNIMEM_LOCAL_X < 16) w(0); }"), "none") << function;
  }
  EXPECT_EQ(divergence_in("UNIMEM_KERNEL g() { if (UNIMEM_LOCAL_X > 1) UNIMEM_BARRIER(); }\n"
                          "UNIMEM_KERNEL f() { UNIMEM_BARRIER(); }"),
            "none")
      << "another kernel's";
}

}  // namespace
}  // namespace unimem::detail
