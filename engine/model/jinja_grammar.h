/// The parser behind jinja_parser.h: a cursor over the tokens, statements in jinja_parser.cpp and
/// expressions in jinja_expressions.cpp. Used by one thread for one template.
#pragma once

#include "engine/base/json_text.h"
#include "engine/model/jinja_lexer.h"
#include "engine/model/jinja_parser.h"

#include <fmt/format.h>

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace keyhole::jinja {

class Parser {
  public:
    explicit Parser(std::string_view source) : tokens_(tokens_of(source)) {}
    NodePtr read() {
        NodePtr all = body({});
        if (now().kind != TokenKind::end) wrong("a tag closes that was not opened");
        return all;
    }

  private:
    static constexpr int kDeepest = 100;
    static constexpr std::size_t kLongestChain = 100;  // a + b + ..., x.y.z: a tree as deep as it is long

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

}  // namespace keyhole::jinja
