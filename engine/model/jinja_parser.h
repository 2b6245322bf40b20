/// Parses a Jinja template into a tree. Pure; any thread. Source: the grammar of jinja2's parser.py 3.1, the
/// part that chat templates use; anything else is refused by name.
#pragma once

#include "engine/model/jinja_value.h"

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace keyhole::jinja {

enum class NodeKind {
    // Statements
    body,       ///< kids in order
    output,     ///< writes kids[0]
    if_,        ///< condition, body, condition, body, ..., and the body of else if the number is odd
    for_,       ///< names = kids[0] if kids[1]: kids[2], else kids[3]; an absent one is null
    set,        ///< names = kids[0]; text.names[0] = kids[0] for a member of a namespace
    set_block,  ///< names[0] = output of kids[0]
    macro,      ///< text(names with defaults in named) kids[0]
    break_,
    continue_,
    // Expressions
    literal,  ///< value
    name,     ///< text
    list,     ///< kids
    dict,     ///< kids: key, value, key, value, ...
    binary,   ///< text: the operator
    compare,  ///< kids[0] op kids[1] op ...; names: the operators
    not_,
    negate,
    and_,
    or_,
    choice,     ///< kids[0] if kids[1] else kids[2]; kids[2] may be null
    concat,     ///< the texts of kids
    attribute,  ///< kids[0].text
    item,       ///< kids[0][kids[1]]
    slice,      ///< kids[0][kids[1]:kids[2]:kids[3]]; an absent one is null
    call,       ///< kids[0](kids[1], ..., named)
    filter,     ///< kids[0] | text(kids[1], ..., named)
    test        ///< kids[0] is text(kids[1], ...)
};

struct Node;
using NodePtr = std::unique_ptr<Node>;

struct Node {
    NodeKind kind = NodeKind::body;
    int line = 0;
    std::string text;
    Value value;
    std::vector<std::string> names;
    std::vector<NodePtr> kids;
    std::vector<std::pair<std::string, NodePtr>> named;
};

/// Returns a body. Throws Error(unsupported) with line and cause; also for more than 100 levels of nesting.
NodePtr parse(std::string_view source);

}  // namespace keyhole::jinja
