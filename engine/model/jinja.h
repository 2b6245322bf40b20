/// A chat template: a program in Jinja, as Hugging Face checkpoints have it. This runs the part of the
/// language that such templates use, with the settings and functions of transformers, and refuses the rest
/// by name. Const after parsing; any thread. Bounded in time and memory, whatever the text.
#pragma once

#include "engine/model/jinja_value.h"

#include <memory>
#include <string>
#include <string_view>

namespace keyhole::jinja {

class Template {
  public:
    /// Throws Error(unsupported) with the line and what is not supported.
    explicit Template(std::string_view source);
    ~Template();
    Template(Template&&) noexcept;

    /// Returns the text that the template writes. Throws Error(unsupported) with the line and the cause: what
    /// is not supported, or the template's own refusal.
    std::string render(const Dict& variables) const;

  private:
    std::unique_ptr<Node> program_;
};

}  // namespace keyhole::jinja
