// Expressions of Jinja, from the loosest operator to the tightest.
#include "engine/model/jinja_grammar.h"

#include <charconv>
#include <cstdint>

namespace keyhole::jinja {

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

}  // namespace keyhole::jinja
