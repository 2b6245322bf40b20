/// Prints a text to stdout while it is made, token by token. Main thread.
#pragma once

#include <string>
#include <string_view>

namespace keyhole {

class TextStream {
  public:
    /// bytes: of the next token. They may end in the middle of a character, which then waits for the rest.
    void add(std::string_view bytes);
    /// Prints what still waits.
    void end();

  private:
    std::string waiting_;  ///< the beginning of a character
};

}  // namespace keyhole
