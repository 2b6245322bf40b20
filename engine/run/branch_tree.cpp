#include "engine/run/branch_tree.h"

#include "engine/base/error.h"
#include "engine/base/index.h"

#include <algorithm>

namespace keyhole {

BranchTree::BranchTree(int row) {
    stretches_.push_back({0, -1, row, row, {}});
}

BranchTree::Stretch& BranchTree::at(int id) {
    return const_cast<Stretch&>(std::as_const(*this).at(id));
}

const BranchTree::Stretch& BranchTree::at(int id) const {
    const auto it = std::lower_bound(stretches_.begin(), stretches_.end(), id,
                                     [](const Stretch& s, int i) { return s.id < i; });
    KH_ASSERT(it != stretches_.end() && it->id == id, "branch {}", id);
    return *it;
}

bool BranchTree::has_children(int id) const {
    return std::any_of(stretches_.begin(), stretches_.end(),
                       [&](const Stretch& s) { return s.parent == id; });
}

/// Returns the path from the root to a stretch.
std::vector<int> BranchTree::line_of(int id) const {
    std::vector<int> line;
    for (; id >= 0; id = at(id).parent) line.push_back(id);
    std::reverse(line.begin(), line.end());
    return line;
}

bool BranchTree::on_line(int id) const {
    const std::vector<int> line = line_of(shown_);
    return std::find(line.begin(), line.end(), id) != line.end();
}

int BranchTree::branch_of(int row) const {
    int id = shown_;
    while (at(id).parent >= 0 && row <= at(id).from_row) id = at(id).parent;
    return id;
}

std::vector<LoggedCommand> BranchTree::line() const {
    std::vector<LoggedCommand> commands;
    for (int id : line_of(shown_))
        commands.insert(commands.end(), at(id).commands.begin(), at(id).commands.end());
    return commands;
}

std::vector<Branch> BranchTree::others() const {
    std::vector<Branch> others;
    for (const Stretch& s : stretches_) {
        if (on_line(s.id)) continue;
        Branch& branch = others.emplace_back(Branch{s.id, s.parent, s.from_row, s.last_row, {}});
        for (const LoggedCommand& logged : s.commands)
            branch.commands.push_back({logged.row, format_command(logged.command)});
    }
    return others;
}

const BranchTree::Stretch& BranchTree::other(int id) const {
    const bool known =
        std::any_of(stretches_.begin(), stretches_.end(), [&](const Stretch& s) { return s.id == id; });
    std::string names;
    for (const Branch& branch : others()) names += fmt::format("{}{}", names.empty() ? "" : ", ", branch.id);
    if (!known)
        fail(ErrorCode::wrong_use, "there is no branch {}; {}", id,
             names.empty() ? "a rewind makes one" : "there are " + names);
    if (on_line(id))
        fail(ErrorCode::wrong_use, "branch {} is part of what is shown; rewind to a step of it, such as {}",
             id, at(id).last_row);
    return at(id);
}

void BranchTree::log(LoggedCommand command) {
    at(shown_).commands.push_back(std::move(command));
}

void BranchTree::row_done(int row) {
    Stretch& leaf = at(shown_);
    leaf.last_row = std::max(leaf.last_row, row);
}

void BranchTree::grow(int parent, int row) {
    stretches_.push_back({next_id_++, parent, row, row, {}});
    shown_ = stretches_.back().id;
}

void BranchTree::drop_if_empty(int id) {
    if (at(id).empty() && !has_children(id))
        std::erase_if(stretches_, [&](const Stretch& s) { return s.id == id; });
}

bool BranchTree::rewind(int row) {
    const int left = shown_;
    KH_ASSERT(row <= at(left).last_row, "row {} of {}", row, at(left).last_row);
    int id = left;
    while (at(id).parent >= 0 && row <= at(id).from_row) id = at(id).parent;
    Stretch& head = at(id);
    const auto cut = std::find_if(head.commands.begin(), head.commands.end(),
                                  [&](const LoggedCommand& logged) { return logged.row >= row; });
    const bool splits = row < head.last_row || cut != head.commands.end();
    if (id == left && !splits) return false;
    if (id != left && !splits && at(left).empty() && at(left).parent == id) return false;
    if (splits) {
        Stretch tail{next_id_++, id, row, head.last_row, {cut, head.commands.end()}};
        head.commands.erase(cut, head.commands.end());
        head.last_row = row;
        for (Stretch& s : stretches_)
            if (s.parent == id) s.parent = tail.id;
        stretches_.push_back(std::move(tail));
    }
    grow(id, row);
    if (left != id) drop_if_empty(left);
    return true;
}

BranchTree::Way BranchTree::way_to(int id) const {
    const std::vector<int> here = line_of(shown_), there = line_of(other(id).id);
    const std::size_t shared =
        to_index(std::mismatch(here.begin(), here.end(), there.begin(), there.end()).first - here.begin());
    Way way;
    way.from_row = at(there[shared - 1]).last_row;
    way.last_row = at(id).last_row;
    for (std::size_t i = shared; i < there.size(); ++i)
        way.commands.insert(way.commands.end(), at(there[i]).commands.begin(), at(there[i]).commands.end());
    return way;
}

void BranchTree::go_to(int id) {
    const int left = shown_;
    // A stretch that others continue must not grow, so a new one begins at its end.
    if (has_children(other(id).id))
        grow(id, at(id).last_row);
    else
        shown_ = id;
    drop_if_empty(left);
}

}  // namespace keyhole
