#pragma once

namespace unimem::detail {

struct StreamRequest;

/// A kernel of the library that the device's driver compiles is tried before it is given anything of the user's, and
/// before the stream takes memory. Throws as KnownAnswers::check.
void check_known_answer(StreamRequest& request);

}  // namespace unimem::detail
