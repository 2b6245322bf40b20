/// Cuts a Jinja template into text and tokens, with the white space around tags removed as transformers sets
/// it (trim_blocks, lstrip_blocks). Pure; any thread. Knows no grammar.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace keyhole::jinja {

enum class TokenKind {
    text,         ///< outside of tags
    begin_value,  ///< {{
    end_value,    ///< }}
    begin_block,  ///< {%
    end_block,    ///< %}
    name,
    string,  ///< a literal, its escapes resolved
    integer,
    real,
    sign,  ///< an operator or a bracket
    end
};

struct Token {
    TokenKind kind = TokenKind::end;
    std::string text;
    int line = 0;  ///< from 1
};

/// Returns the tokens of a template; the last is `end`. Throws Error(unsupported) with line and cause.
std::vector<Token> tokens_of(std::string_view source);

}  // namespace keyhole::jinja
