// Statements of Jinja: what stands in a template beside its expressions.
#include "engine/model/jinja_parser.h"

#include "engine/model/jinja_grammar.h"

namespace keyhole::jinja {

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

NodePtr parse(std::string_view source) {
    constexpr std::size_t kMostBytes = std::size_t{256} << 10;
    if (source.size() > kMostBytes) unsupported("a template of more than 256 KiB");
    return Parser(source).read();
}

}  // namespace keyhole::jinja
