#include "engine/model/jinja.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/model/jinja_functions.h"
#include "engine/model/jinja_parser.h"

#include <algorithm>
#include <map>
#include <utility>

namespace keyhole::jinja {
namespace {

constexpr int kMostSteps = 2'000'000;
constexpr int kDeepest = 400;
constexpr std::size_t kMostBytes = std::size_t{256} << 20;  // of all texts made

enum class Flow { next, leave_loop, next_round };

/// One run of a program.
class Run {
  public:
    explicit Run(const Dict& variables) {
        scopes_.emplace_back();
        for (const auto& [name, value] : variables) scopes_.front()[name] = value;
    }
    std::string output(const Node& program) {
        std::string out;
        execute(program, out);
        return out;
    }

  private:
    using Scope = std::map<std::string, Value>;
    struct Level {
        explicit Level(Run& run) : run_(run) {
            if (++run_.level_ > kDeepest) unsupported("calls nested too deep");
            if (++run_.n_steps_ > kMostSteps) unsupported("more than 2 million steps");
        }
        ~Level() { --run_.level_; }
        Run& run_;
    };

    Flow execute(const Node& node, std::string& out);
    Flow loop(const Node& node, std::string& out);
    Flow choose(const Node& node, std::string& out);
    void assign(const std::vector<std::string>& names, const Value& value);
    void set(const Node& node);
    Value evaluate(const Node& node);
    Value evaluated(const Node& node);
    Value compare(const Node& node);
    Value name(const std::string& text) const;
    Value call(const Node& node);
    Value call_macro(const Node& macro, const Args& args);
    Args arguments(const Node& node);
    Value optional(const NodePtr& node) { return node == nullptr ? Value() : evaluate(*node); }
    Value counted(Value value);

    std::vector<Scope> scopes_;
    int level_ = 0, n_steps_ = 0;
    std::size_t n_bytes_ = 0;
};

/// Counts what a value needs, so that a loop cannot fill the memory.
Value Run::counted(Value value) {
    if (value.text() != nullptr) n_bytes_ += value.text()->size();
    n_bytes_ += value.n_values();
    if (n_bytes_ > kMostBytes) unsupported("more than 256 MiB of texts");
    return value;
}

Flow Run::execute(const Node& node, std::string& out) {
    const Level level(*this);
    switch (node.kind) {
        case NodeKind::body:
            for (const NodePtr& kid : node.kids)
                if (const Flow flow = execute(*kid, out); flow != Flow::next) return flow;
            return Flow::next;
        case NodeKind::output:
            out += text_of(counted(evaluate(*node.kids.front())));
            return Flow::next;
        case NodeKind::if_:
            return choose(node, out);
        case NodeKind::for_:
            return loop(node, out);
        case NodeKind::set:
        case NodeKind::set_block:
            set(node);
            return Flow::next;
        case NodeKind::macro:
            scopes_.back()[node.text] = Callable{node.text, &node, {}};
            return Flow::next;
        case NodeKind::break_:
            return Flow::leave_loop;
        default:
            return Flow::next_round;
    }
}

Flow Run::choose(const Node& node, std::string& out) {
    std::size_t i = 0;
    for (; i + 1 < node.kids.size(); i += 2)
        if (evaluate(*node.kids[i]).truth()) return execute(*node.kids[i + 1], out);
    return i < node.kids.size() ? execute(*node.kids[i], out) : Flow::next;
}

void Run::assign(const std::vector<std::string>& names, const Value& value) {
    if (names.size() == 1) {
        scopes_.back()[names.front()] = value;
        return;
    }
    const List items = items_of(value);
    if (items.size() != names.size())
        unsupported(fmt::format("{} values for {} names", items.size(), names.size()));
    for (std::size_t i = 0; i < names.size(); ++i) scopes_.back()[names[i]] = items[i];
}

void Run::set(const Node& node) {
    if (node.kind == NodeKind::set_block) {
        std::string text;
        scopes_.emplace_back();
        execute(*node.kids.front(), text);
        scopes_.pop_back();
        return assign(node.names, counted(std::move(text)));
    }
    const Value value = evaluate(*node.kids.front());
    if (node.text.empty()) return assign(node.names, value);
    Value space = name(node.text);
    if (!space.is_namespace()) unsupported(fmt::format("a member of {}", space.type()));
    space.set_member(node.names.front(), value);
}

Flow Run::loop(const Node& node, std::string& out) {
    List items;
    for (Value& item : items_of(evaluate(*node.kids[0]))) {
        bool visits = true;
        if (node.kids[1] != nullptr) {
            scopes_.emplace_back();
            assign(node.names, item);
            visits = evaluate(*node.kids[1]).truth();
            scopes_.pop_back();
        }
        if (visits) items.push_back(std::move(item));
    }
    if (items.empty() && node.kids[3] != nullptr) return execute(*node.kids[3], out);
    const auto n = static_cast<std::int64_t>(items.size());
    for (std::int64_t i = 0; i < n; ++i) {
        const Value &item = items[to_index(i)], before = i > 0 ? items[to_index(i - 1)] : Value(),
                    after = i + 1 < n ? items[to_index(i + 1)] : Value();
        scopes_.emplace_back();
        assign(node.names, item);
        scopes_.back()["loop"] =
            Dict{{"index", i + 1},   {"index0", i},        {"revindex", n - i}, {"revindex0", n - i - 1},
                 {"first", i == 0},  {"last", i + 1 == n}, {"length", n},       {"previtem", before},
                 {"nextitem", after}};
        const Flow flow = execute(*node.kids[2], out);
        scopes_.pop_back();
        if (flow == Flow::leave_loop) break;
    }
    return Flow::next;
}

Value Run::name(const std::string& text) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope)
        if (const auto found = scope->find(text); found != scope->end()) return found->second;
    return is_function(text) ? Value(Callable{text, nullptr, {}}) : Value();
}

/// Names the line of an error once, the innermost.
Value Run::evaluate(const Node& node) {
    const Level level(*this);
    try {
        return counted(evaluated(node));
    } catch (const Error& error) {
        const std::string what = error.what();
        if (what.starts_with("line ")) throw;
        fail(error.code(), "line {}: {}", node.line, what);
    }
}

Value Run::evaluated(const Node& node) {
    const auto kid = [&](std::size_t i) { return evaluate(*node.kids[i]); };
    switch (node.kind) {
        case NodeKind::literal:
            return node.value;
        case NodeKind::name:
            return name(node.text);
        case NodeKind::list: {
            List items;
            for (const NodePtr& one : node.kids) items.push_back(evaluate(*one));
            return items;
        }
        case NodeKind::dict: {
            Value dict(Dict{}, true);
            for (std::size_t i = 0; i < node.kids.size(); i += 2)
                dict.set_member(text_of(kid(i)), kid(i + 1));
            return *dict.dict();
        }
        case NodeKind::binary:
            return binary(node.text, kid(0), kid(1));
        case NodeKind::compare:
            return compare(node);
        case NodeKind::not_:
            return !kid(0).truth();
        case NodeKind::negate:
            return binary("-", Value(0), kid(0));
        case NodeKind::and_:
        case NodeKind::or_: {
            Value value;
            for (const NodePtr& one : node.kids) {
                value = evaluate(*one);
                if (value.truth() == (node.kind == NodeKind::or_)) break;
            }
            return value;
        }
        case NodeKind::choice:
            return kid(1).truth() ? kid(0) : optional(node.kids[2]);
        case NodeKind::concat: {
            std::string text;
            for (const NodePtr& one : node.kids) text += text_of(evaluate(*one));
            return text;
        }
        case NodeKind::attribute:
            return member_of(kid(0), node.text);
        case NodeKind::item:
            return item_of(kid(0), kid(1));
        case NodeKind::slice:
            return slice_of(kid(0), optional(node.kids[1]), optional(node.kids[2]), optional(node.kids[3]));
        case NodeKind::call:
            return call(node);
        case NodeKind::filter: {
            const Value of = kid(0);
            return filtered(node.text, of, arguments(node));
        }
        case NodeKind::test: {
            const Value of = kid(0);
            return tested(node.text, of, arguments(node));
        }
        default:
            unsupported("a tag where a value belongs");
    }
}

Value Run::compare(const Node& node) {
    Value left = evaluate(*node.kids.front());
    for (std::size_t i = 0; i < node.names.size(); ++i) {
        const std::string& sign = node.names[i];
        Value right = evaluate(*node.kids[i + 1]);
        const bool holds = sign == "=="   ? equal(left, right)
                           : sign == "!=" ? !equal(left, right)
                           : sign == "<"  ? less(left, right)
                           : sign == ">"  ? less(right, left)
                           : sign == "<=" ? !less(right, left)
                           : sign == ">=" ? !less(left, right)
                           : sign == "in" ? contains(right, left)
                                          : !contains(right, left);
        if (!holds) return false;
        left = std::move(right);
    }
    return true;
}

Args Run::arguments(const Node& node) {
    Args args;
    for (std::size_t i = 1; i < node.kids.size(); ++i) args.values.push_back(evaluate(*node.kids[i]));
    for (const auto& [key, value] : node.named) args.named.emplace_back(key, evaluate(*value));
    return args;
}

Value Run::call(const Node& node) {
    const Value callee = evaluate(*node.kids.front());
    const Callable* callable = callee.callable();
    if (callable == nullptr) unsupported(fmt::format("a call of {}", callee.type()));
    const Args args = arguments(node);
    if (callable->macro != nullptr) return call_macro(*callable->macro, args);
    if (callable->self.is_undefined()) return call_function(callable->name, args);
    return call_method(callable->name, callable->self, args);
}

/// A macro sees its arguments and the names of the template's own level.
Value Run::call_macro(const Node& macro, const Args& args) {
    std::vector<Scope> inner;
    inner.push_back(std::move(scopes_.front()));
    inner.emplace_back();
    std::vector<Scope> outer = std::exchange(scopes_, std::move(inner));
    if (args.values.size() > macro.names.size()) unsupported("more arguments than the macro has");
    for (const auto& [key, value] : args.named)
        if (std::find(macro.names.begin(), macro.names.end(), key) == macro.names.end())
            unsupported(fmt::format("the argument {} of a macro", shown_text(key)));
    for (std::size_t i = 0; i < macro.names.size(); ++i) {
        const std::string& parameter = macro.names[i];
        const auto fallback = std::find_if(macro.named.begin(), macro.named.end(),
                                           [&](const auto& one) { return one.first == parameter; });
        const Value* given = args.find(i, parameter);
        scopes_.back()[parameter] = given != nullptr                ? *given
                                    : fallback == macro.named.end() ? Value()
                                                                    : evaluate(*fallback->second);
    }
    std::string out;
    execute(*macro.kids.front(), out);
    outer.front() = std::move(scopes_.front());
    scopes_ = std::move(outer);
    return out;
}

}  // namespace

Template::Template(std::string_view source) : program_(parse(source)) {}
Template::~Template() = default;
Template::Template(Template&&) noexcept = default;

std::string Template::render(const Dict& variables) const {
    return Run(variables).output(*program_);
}

}  // namespace keyhole::jinja
