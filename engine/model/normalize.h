/// What tokenizer.json's normalizer does to a text before it is cut. Const after building; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

class Normalizer {
  public:
    void add_nfc();
    void add_prepend(std::string text);
    void add_replace(std::string from, std::string to);

    bool empty() const { return steps_.empty(); }
    /// Bytes that are no UTF-8 stay as they are.
    std::string apply(std::string_view text) const;

  private:
    enum class Kind { nfc, prepend, replace };
    struct Step {
        Kind kind;
        std::string from, to;
    };
    std::vector<Step> steps_;
};

/// Every `from` of `text` as `to`.
std::string replaced(std::string_view text, std::string_view from, std::string_view to);

}  // namespace keyhole
