#include "engine/model/jinja_parser.h"

#include "engine/base/json_text.h"
#include "engine/model/jinja_lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <initializer_list>

namespace keyhole::jinja {
namespace {

constexpr std::size_t kMostBytes = std::size_t{256} << 10;
constexpr int kDeepest = 100;
constexpr std::size_t kLongestChain = 100;  // a + b + ..., x.y.z: a tree as deep as it is long

class Parser {
  public:
    explicit Parser(std::string_view source) : tokens_(tokens_of(source)) {}
    NodePtr read() {
        NodePtr all = body({});
        if (now().kind != TokenKind::end) wrong("a tag closes that was not opened");
        return all;
    }

  private:
    /// Counts the levels of nesting, which are levels of recursion here and wherever the tree is walked.
    struct Level {
        explicit Level(Parser& parser) : parser_(parser) {
            if (++parser_.level_ > kDeepest) parser_.wrong("more than 100 levels of nesting");
        }
        ~Level() { --parser_.level_; }
        Parser& parser_;
    };

    [[noreturn]] void wrong(const std::string& what) const {
        unsupported(fmt::format("line {}: {}", now().line, what));
    }
    const Token& now() const { return tokens_[at_]; }
    Token take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
    bool is_sign(std::string_view text) const { return now().kind == TokenKind::sign && now().text == text; }
    bool is_word(std::string_view text) const { return now().kind == TokenKind::name && now().text == text; }
    bool is_word_after(std::string_view text) const {
        return at_ + 1 < tokens_.size() && tokens_[at_ + 1].kind == TokenKind::name &&
               tokens_[at_ + 1].text == text;
    }
    bool took_sign(std::string_view text) {
        if (!is_sign(text)) return false;
        take();
        return true;
    }
    bool took_word(std::string_view text) {
        if (!is_word(text)) return false;
        take();
        return true;
    }
    void want_sign(std::string_view text) {
        if (!took_sign(text)) wrong(fmt::format("{} where {} belongs", shown(), text));
    }
    std::string want_name() {
        if (now().kind != TokenKind::name) wrong(fmt::format("{} where a name belongs", shown()));
        return take().text;
    }
    void end_block() {
        if (now().kind != TokenKind::end_block) wrong(fmt::format("{} where the tag should end", shown()));
        take();
    }
    std::string shown() const { return now().text.empty() ? "the end of a tag" : shown_text(now().text); }
    NodePtr node(NodeKind kind, std::string text = {}) const {
        auto made = std::make_unique<Node>();
        made->kind = kind;
        made->line = now().line;
        made->text = std::move(text);
        return made;
    }
    NodePtr node(NodeKind kind, std::string text, NodePtr first, NodePtr second = nullptr) const {
        NodePtr made = node(kind, std::move(text));
        made->kids.push_back(std::move(first));
        if (second != nullptr) made->kids.push_back(std::move(second));
        return made;
    }
    void bound_chain(std::size_t& n) const {
        if (++n > kLongestChain) wrong("an expression of more than 100 parts");
    }

    NodePtr body(std::initializer_list<std::string_view> ends);
    NodePtr statement(const std::string& word);
    NodePtr if_block();
    NodePtr for_block();
    NodePtr set_block();
    NodePtr macro_block();
    std::vector<std::string> targets();

    NodePtr expression();
    NodePtr list_or_one(bool with_choice);
    NodePtr either();
    NodePtr both();
    NodePtr negation();
    NodePtr comparison();
    NodePtr sum();
    NodePtr texts();
    NodePtr product();
    NodePtr unary(bool with_filter);
    NodePtr primary();
    NodePtr brackets(NodeKind kind, std::string_view close);
    NodePtr postfix(NodePtr of);
    NodePtr subscript(NodePtr of);
    NodePtr filters(NodePtr of);
    NodePtr test(NodePtr of);
    void arguments(Node& of);

    std::vector<Token> tokens_;
    std::size_t at_ = 0;
    int level_ = 0, loops_ = 0;
};

NodePtr Parser::body(std::initializer_list<std::string_view> ends) {
    const Level level(*this);
    NodePtr all = node(NodeKind::body);
    while (now().kind != TokenKind::end) {
        if (now().kind == TokenKind::text) {
            NodePtr text = node(NodeKind::literal);
            text->value = take().text;
            all->kids.push_back(node(NodeKind::output, {}, std::move(text)));
        } else if (now().kind == TokenKind::begin_value) {
            take();
            all->kids.push_back(node(NodeKind::output, {}, list_or_one(true)));
            if (now().kind != TokenKind::end_value) wrong(fmt::format("{} where }}}} belongs", shown()));
            take();
        } else {
            if (now().kind != TokenKind::begin_block) wrong(fmt::format("{} out of place", shown()));
            for (const std::string_view end : ends)
                if (is_word_after(end)) return all;
            take();
            const std::string word = want_name();
            if (NodePtr made = statement(word); made != nullptr) all->kids.push_back(std::move(made));
        }
    }
    return all;
}

/// Returns null for a tag that writes nothing and changes nothing.
NodePtr Parser::statement(const std::string& word) {
    if (word == "if") return if_block();
    if (word == "for") return for_block();
    if (word == "set") return set_block();
    if (word == "macro") return macro_block();
    if (word == "generation" || word == "endgeneration") {  // transformers' marks of what was answered
        end_block();
        return nullptr;
    }
    if (word == "break" || word == "continue") {
        if (loops_ == 0) wrong(word + " outside of a loop");
        end_block();
        return node(word == "break" ? NodeKind::break_ : NodeKind::continue_);
    }
    wrong(fmt::format("the tag {}", shown_text(word)));
}

NodePtr Parser::if_block() {
    NodePtr made = node(NodeKind::if_);
    made->kids.push_back(list_or_one(false));
    end_block();
    for (;;) {
        made->kids.push_back(body({"elif", "else", "endif"}));
        if (now().kind == TokenKind::end) wrong("an if does not end");
        take();
        const std::string word = take().text;
        if (word == "elif") {
            made->kids.push_back(list_or_one(false));
            end_block();
            continue;
        }
        end_block();
        if (word == "endif") return made;
        made->kids.push_back(body({"endif"}));
        if (now().kind == TokenKind::end) wrong("an if does not end");
        take();
        take();
        end_block();
        return made;
    }
}

std::vector<std::string> Parser::targets() {
    const bool in_brackets = took_sign("(");
    std::vector<std::string> names = {want_name()};
    while (took_sign(",")) names.push_back(want_name());
    if (in_brackets) want_sign(")");
    return names;
}

NodePtr Parser::for_block() {
    NodePtr made = node(NodeKind::for_);
    made->names = targets();
    if (!took_word("in")) wrong(fmt::format("{} where in belongs", shown()));
    made->kids.push_back(list_or_one(false));
    made->kids.push_back(took_word("if") ? expression() : nullptr);
    end_block();
    ++loops_;
    made->kids.push_back(body({"else", "endfor"}));
    --loops_;
    if (now().kind == TokenKind::end) wrong("a for does not end");
    take();
    if (took_word("else")) {
        end_block();
        made->kids.push_back(body({"endfor"}));
        if (now().kind == TokenKind::end) wrong("a for does not end");
        take();
    } else {
        made->kids.push_back(nullptr);
    }
    take();
    end_block();
    return made;
}

NodePtr Parser::set_block() {
    NodePtr made = node(NodeKind::set);
    made->names = targets();
    if (made->names.size() == 1 && took_sign(".")) {
        made->text = made->names.front();
        made->names.front() = want_name();
    }
    if (took_sign("=")) {
        made->kids.push_back(list_or_one(true));
        end_block();
        return made;
    }
    if (made->names.size() != 1 || !made->text.empty()) wrong("a set of this form");
    end_block();
    made->kind = NodeKind::set_block;
    made->kids.push_back(body({"endset"}));
    if (now().kind == TokenKind::end) wrong("a set does not end");
    take();
    take();
    end_block();
    return made;
}

NodePtr Parser::macro_block() {
    NodePtr made = node(NodeKind::macro);
    made->text = want_name();
    want_sign("(");
    while (!took_sign(")")) {
        if (!made->names.empty()) want_sign(",");
        made->names.push_back(want_name());
        if (took_sign("=")) made->named.emplace_back(made->names.back(), expression());
    }
    end_block();
    const int outer = std::exchange(loops_, 0);
    made->kids.push_back(body({"endmacro"}));
    loops_ = outer;
    if (now().kind == TokenKind::end) wrong("a macro does not end");
    take();
    take();
    end_block();
    return made;
}

/// Returns an expression, or the list of several that commas separate.
NodePtr Parser::list_or_one(bool with_choice) {
    const auto one = [&] { return with_choice ? expression() : either(); };
    NodePtr first = one();
    if (!is_sign(",")) return first;
    NodePtr list = node(NodeKind::list, {}, std::move(first));
    while (took_sign(",")) list->kids.push_back(one());
    return list;
}

NodePtr Parser::expression() {
    const Level level(*this);
    NodePtr value = either();
    std::size_t n = 0;
    while (took_word("if")) {
        bound_chain(n);
        NodePtr made = node(NodeKind::choice, {}, std::move(value), either());
        made->kids.push_back(took_word("else") ? expression() : nullptr);
        value = std::move(made);
    }
    return value;
}

NodePtr Parser::either() {
    NodePtr made = both();
    if (!is_word("or")) return made;
    made = node(NodeKind::or_, {}, std::move(made));
    while (took_word("or")) made->kids.push_back(both());
    return made;
}

NodePtr Parser::both() {
    NodePtr made = negation();
    if (!is_word("and")) return made;
    made = node(NodeKind::and_, {}, std::move(made));
    while (took_word("and")) made->kids.push_back(negation());
    return made;
}

NodePtr Parser::negation() {
    const Level level(*this);
    if (took_word("not")) return node(NodeKind::not_, {}, negation());
    return comparison();
}

NodePtr Parser::comparison() {
    NodePtr first = sum(), made;
    for (;;) {
        std::string sign;
        for (const std::string_view one : {"==", "!=", "<", "<=", ">", ">="})
            if (is_sign(one)) sign = one;
        if (is_word("in")) sign = "in";
        if (is_word("not") && is_word_after("in")) sign = "not in";
        if (sign.empty()) return made == nullptr ? std::move(first) : std::move(made);
        take();
        if (sign == "not in") take();
        if (made == nullptr) made = node(NodeKind::compare, {}, std::move(first));
        made->names.push_back(sign);
        made->kids.push_back(sum());
    }
}

NodePtr Parser::sum() {
    NodePtr made = texts();
    for (std::size_t n = 0; is_sign("+") || is_sign("-");) {
        bound_chain(n);
        const std::string sign = take().text;
        made = node(NodeKind::binary, sign, std::move(made), texts());
    }
    return made;
}

NodePtr Parser::texts() {
    NodePtr made = product();
    if (!is_sign("~")) return made;
    made = node(NodeKind::concat, {}, std::move(made));
    while (took_sign("~")) made->kids.push_back(product());
    return made;
}

NodePtr Parser::product() {
    NodePtr made = unary(true);
    for (std::size_t n = 0;;) {
        if (is_sign("**")) wrong("a power");
        if (!is_sign("*") && !is_sign("/") && !is_sign("//") && !is_sign("%")) return made;
        bound_chain(n);
        const std::string sign = take().text;
        made = node(NodeKind::binary, sign, std::move(made), unary(true));
    }
}

NodePtr Parser::unary(bool with_filter) {
    const Level level(*this);
    NodePtr made;
    if (took_sign("-")) {
        made = node(NodeKind::negate, {}, unary(false));
    } else if (took_sign("+")) {
        made = unary(false);
    } else {
        made = primary();
    }
    made = postfix(std::move(made));
    return with_filter ? filters(std::move(made)) : std::move(made);
}

NodePtr Parser::primary() {
    NodePtr made = node(NodeKind::literal);
    switch (now().kind) {
        case TokenKind::string: {
            std::string text;
            while (now().kind == TokenKind::string) text += take().text;
            made->value = std::move(text);
            return made;
        }
        case TokenKind::integer: {
            const std::string digits = take().text;
            std::int64_t value = 0;
            std::from_chars(digits.data(), digits.data() + digits.size(), value);
            made->value = value;
            return made;
        }
        case TokenKind::real: {
            const std::string digits = take().text;
            double value = 0;
            std::from_chars(digits.data(), digits.data() + digits.size(), value);
            made->value = value;
            return made;
        }
        case TokenKind::name: {
            const std::string name = take().text;
            if (name == "true" || name == "True") {
                made->value = true;
            } else if (name == "false" || name == "False") {
                made->value = false;
            } else if (name == "none" || name == "None") {
                made->value = None{};
            } else {
                made->kind = NodeKind::name;
                made->text = name;
            }
            return made;
        }
        default:
            break;
    }
    if (took_sign("[")) return brackets(NodeKind::list, "]");
    if (took_sign("{")) return brackets(NodeKind::dict, "}");
    if (!took_sign("(")) wrong(fmt::format("{} where a value belongs", shown()));
    if (took_sign(")")) return node(NodeKind::list);
    NodePtr first = expression();
    if (took_sign(")")) return first;
    made = node(NodeKind::list, {}, std::move(first));
    while (took_sign(",") && !is_sign(")")) made->kids.push_back(expression());
    want_sign(")");
    return made;
}

NodePtr Parser::brackets(NodeKind kind, std::string_view close) {
    NodePtr made = node(kind);
    while (!took_sign(close)) {
        if (!made->kids.empty()) want_sign(",");
        if (took_sign(close)) break;
        made->kids.push_back(expression());
        if (kind == NodeKind::list) continue;
        want_sign(":");
        made->kids.push_back(expression());
    }
    return made;
}

NodePtr Parser::postfix(NodePtr of) {
    for (std::size_t n = 0;; bound_chain(n)) {
        if (took_sign(".")) {
            if (now().kind == TokenKind::integer) {
                NodePtr index = primary();
                of = node(NodeKind::item, {}, std::move(of), std::move(index));
                continue;
            }
            std::string name = want_name();
            of = node(NodeKind::attribute, std::move(name), std::move(of));
        } else if (took_sign("[")) {
            of = subscript(std::move(of));
        } else if (took_sign("(")) {
            of = node(NodeKind::call, {}, std::move(of));
            arguments(*of);
        } else {
            return of;
        }
    }
}

NodePtr Parser::subscript(NodePtr of) {
    NodePtr made = node(NodeKind::item, {}, std::move(of));
    NodePtr part = is_sign(":") ? nullptr : expression();
    if (took_sign("]")) {
        made->kids.push_back(std::move(part));
        return made;
    }
    made->kind = NodeKind::slice;
    made->kids.push_back(std::move(part));
    while (took_sign(":") && made->kids.size() < 4)
        made->kids.push_back(is_sign(":") || is_sign("]") ? nullptr : expression());
    want_sign("]");
    made->kids.resize(4);
    return made;
}

void Parser::arguments(Node& of) {
    for (bool first = true; !took_sign(")"); first = false) {
        if (!first) want_sign(",");
        if (took_sign(")")) return;
        const bool named = now().kind == TokenKind::name && at_ + 1 < tokens_.size() &&
                           tokens_[at_ + 1].kind == TokenKind::sign && tokens_[at_ + 1].text == "=";
        if (!named) {
            if (!of.named.empty()) wrong("an argument without a name behind a named one");
            of.kids.push_back(expression());
            continue;
        }
        std::string name = take().text;
        take();
        of.named.emplace_back(std::move(name), expression());
    }
}

NodePtr Parser::filters(NodePtr of) {
    for (std::size_t n = 0;; bound_chain(n)) {
        if (took_sign("|")) {
            std::string name = want_name();
            of = node(NodeKind::filter, std::move(name), std::move(of));
            if (took_sign("(")) arguments(*of);
        } else if (is_word("is")) {
            of = test(std::move(of));
        } else if (took_sign("(")) {
            of = node(NodeKind::call, {}, std::move(of));
            arguments(*of);
        } else {
            return of;
        }
    }
}

NodePtr Parser::test(NodePtr of) {
    take();
    const bool negated = took_word("not");
    std::string name = want_name();
    NodePtr made = node(NodeKind::test, std::move(name), std::move(of));
    const bool begins_value =
        now().kind == TokenKind::string || now().kind == TokenKind::integer ||
        now().kind == TokenKind::real || is_sign("[") || is_sign("{") ||
        (now().kind == TokenKind::name && !is_word("else") && !is_word("or") && !is_word("and") &&
         !is_word("is") && !is_word("if") && !is_word("not") && !is_word("in"));
    if (took_sign("(")) {
        arguments(*made);
    } else if (begins_value) {
        made->kids.push_back(postfix(primary()));
    }
    return negated ? node(NodeKind::not_, {}, std::move(made)) : std::move(made);
}

}  // namespace

NodePtr parse(std::string_view source) {
    if (source.size() > kMostBytes) unsupported("a template of more than 256 KiB");
    return Parser(source).read();
}

}  // namespace keyhole::jinja
