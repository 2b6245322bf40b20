#include "engine/model/jinja_lexer.h"

#include "engine/base/json_text.h"
#include "engine/model/jinja_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace keyhole::jinja {
namespace {

constexpr std::string_view kSpace = " \t\n\r\f\v";

bool is_digit(char c) {
    return c >= '0' && c <= '9';
}
bool begins_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/// Returns the source as Jinja reads it: with \n for every line end, without a last one.
std::string lines_of(std::string_view source) {
    std::string text;
    for (std::size_t i = 0; i < source.size(); ++i) {
        if (source[i] != '\r') {
            text += source[i];
        } else {
            text += '\n';
            if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
        }
    }
    if (text.ends_with('\n')) text.pop_back();
    return text;
}

void append_utf8(char32_t c, std::string& out) {
    const auto add = [&](char32_t bits) { out += static_cast<char>(static_cast<unsigned char>(bits)); };
    if (c < 0x80) {
        add(c);
    } else if (c < 0x800) {
        add(0xc0 | (c >> 6));
        add(0x80 | (c & 0x3f));
    } else if (c < 0x10000) {
        add(0xe0 | (c >> 12));
        add(0x80 | ((c >> 6) & 0x3f));
        add(0x80 | (c & 0x3f));
    } else {
        add(0xf0 | (c >> 18));
        add(0x80 | ((c >> 12) & 0x3f));
        add(0x80 | ((c >> 6) & 0x3f));
        add(0x80 | (c & 0x3f));
    }
}

class Lexer {
  public:
    explicit Lexer(std::string_view source) : text_(lines_of(source)) {}
    std::vector<Token> read();

  private:
    [[noreturn]] void wrong(const std::string& what) const {
        unsupported(fmt::format("line {}: {}", line_, what));
    }
    std::string_view rest() const { return std::string_view(text_).substr(at_); }
    void skip(std::size_t n) {
        line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                             text_.begin() + static_cast<std::ptrdiff_t>(at_ + n), '\n'));
        at_ += n;
    }
    void skip_space() {
        const std::size_t end = std::min(text_.find_first_not_of(kSpace, at_), text_.size());
        skip(end - at_);
    }
    void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
    void read_text();
    void read_tag(char kind);
    void end_tag(char kind, bool strips, bool keeps);
    void read_token();
    void read_string(char quote);
    void read_number();

    std::string text_;
    std::size_t at_ = 0;
    int line_ = 1;
    bool line_begins_ = true;  // the tag before this text took a line end with it
    std::vector<Token> tokens_;
};

std::vector<Token> Lexer::read() {
    while (at_ < text_.size()) read_text();
    add(TokenKind::end, {});
    return std::move(tokens_);
}

void Lexer::read_text() {
    std::size_t open = at_;
    while (open < text_.size()) {
        open = std::min(text_.find('{', open), text_.size());
        if (open + 1 < text_.size() && std::string_view("{%#").find(text_[open + 1]) != std::string::npos)
            break;
        open = std::min(open + 1, text_.size());
    }
    std::string_view data = std::string_view(text_).substr(at_, open - at_);
    if (open >= text_.size()) {
        add(TokenKind::text, std::string(data));
        skip(data.size());
        return;
    }
    const char kind = text_[open + 1], sign = open + 2 < text_.size() ? text_[open + 2] : '\0';
    std::string_view kept = data;
    if (sign == '-') {
        kept = stripped(data, false, true, nullptr);
    } else if (sign != '+' && kind != '{') {
        const std::size_t line = data.rfind('\n') + 1;  // npos + 1 is 0
        if ((line > 0 || line_begins_) && data.find_first_not_of(kSpace, line) == std::string_view::npos)
            kept = data.substr(0, line);
    }
    if (!kept.empty()) add(TokenKind::text, std::string(kept));
    skip(data.size() + 2 + (sign == '-' || (sign == '+' && kind != '{') ? 1 : 0));
    if (kind != '#') return read_tag(kind);
    const std::size_t close = text_.find("#}", at_);
    if (close == std::string::npos) wrong("a comment does not end");
    const char last = close > at_ ? text_[close - 1] : '\0';
    skip(close + 2 - at_);
    end_tag(kind, last == '-', last == '+');
}

void Lexer::end_tag(char kind, bool strips, bool keeps) {
    const std::size_t before = at_;
    if (strips)
        skip_space();
    else if (!keeps && kind != '{' && rest().starts_with('\n'))
        skip(1);
    line_begins_ = at_ > before && text_[at_ - 1] == '\n';
}

void Lexer::read_tag(char kind) {
    const bool is_value = kind == '{';
    const std::string_view close = is_value ? "}}" : "%}";
    add(is_value ? TokenKind::begin_value : TokenKind::begin_block, {});
    int open = 0;  // brackets: "}}" inside of one ends an object, not the tag
    for (;;) {
        skip_space();
        if (at_ >= text_.size()) wrong("a tag does not end");
        if (open == 0) {
            const char sign = rest().front();
            const bool signs =
                (sign == '-' || (sign == '+' && !is_value)) && rest().substr(1).starts_with(close);
            if (signs || rest().starts_with(close)) {
                add(is_value ? TokenKind::end_value : TokenKind::end_block, {});
                skip(signs ? 3 : 2);
                return end_tag(kind, signs && sign == '-', signs && sign == '+');
            }
        }
        read_token();
        if (tokens_.back().kind != TokenKind::sign) continue;
        const std::string& sign = tokens_.back().text;
        if (sign == "(" || sign == "[" || sign == "{") ++open;
        if (sign == ")" || sign == "]" || sign == "}") --open;
        if (open < 0) wrong("a bracket closes that was not opened");
    }
}

void Lexer::read_token() {
    const std::string_view here = rest();
    const char c = here.front();
    if (c == '\'' || c == '"') return read_string(c);
    if (is_digit(c)) return read_number();
    if (begins_name(c)) {
        std::size_t n = 1;
        while (n < here.size() && (begins_name(here[n]) || is_digit(here[n]))) ++n;
        add(TokenKind::name, std::string(here.substr(0, n)));
        return skip(n);
    }
    static constexpr std::array<std::string_view, 6> kPairs = {"==", "!=", "<=", ">=", "//", "**"};
    for (const std::string_view pair : kPairs) {
        if (!here.starts_with(pair)) continue;
        add(TokenKind::sign, std::string(pair));
        return skip(2);
    }
    if (std::string_view("+-*/%~<>=()[]{}.,:|").find(c) == std::string_view::npos)
        wrong(fmt::format("the character {}", shown_text(here.substr(0, 1))));
    add(TokenKind::sign, std::string(1, c));
    skip(1);
}

void Lexer::read_number() {
    const std::string_view here = rest();
    std::size_t n = 0;
    const auto digits = [&] {
        while (n < here.size() && is_digit(here[n])) ++n;
    };
    digits();
    const bool is_real = n + 1 < here.size() && here[n] == '.' && is_digit(here[n + 1]);
    if (is_real) {
        ++n;
        digits();
    }
    if (n > 17 || (n < here.size() && begins_name(here[n]))) wrong("a number of another form");
    add(is_real ? TokenKind::real : TokenKind::integer, std::string(here.substr(0, n)));
    skip(n);
}

/// Escapes are those of Python's literals; an unknown one stays as it is.
void Lexer::read_string(char quote) {
    const std::string_view here = rest();
    std::string out;
    std::size_t i = 1;
    for (; i < here.size() && here[i] != quote; ++i) {
        if (here[i] != '\\' || i + 1 == here.size()) {
            out += here[i];
            continue;
        }
        const char c = here[++i];
        static constexpr std::string_view kLetters = "nrtabfv\\'\"", kSigns = "\n\r\t\a\b\f\v\\'\"";
        if (const std::size_t which = kLetters.find(c); which != std::string_view::npos) {
            out += kSigns[which];
        } else if (c == 'x' || c == 'u' || c == 'U') {
            const std::size_t n = c == 'x' ? 2 : c == 'u' ? 4 : 8;
            char32_t code = 0;
            for (std::size_t k = 1; k <= n; ++k) {
                const char digit = i + k < here.size() ? here[i + k] : '\0';
                const std::size_t value =
                    std::string_view("0123456789abcdef")
                        .find(static_cast<char>(digit >= 'A' && digit <= 'F' ? digit - 'A' + 'a' : digit));
                if (digit == '\0' || value == std::string_view::npos) wrong("an escape that is cut off");
                code = code * 16 + static_cast<char32_t>(value);
            }
            if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) wrong("an escape of no character");
            append_utf8(code, out);
            i += n;
        } else if (is_digit(c) || c == 'N') {
            wrong("an escape by number or name");
        } else if (c != '\n') {
            out += '\\';
            out += c;
        }
    }
    if (i >= here.size()) wrong("a text does not end");
    add(TokenKind::string, std::move(out));
    skip(i + 1);
}

}  // namespace

std::vector<Token> tokens_of(std::string_view source) {
    return Lexer(source).read();
}

}  // namespace keyhole::jinja
