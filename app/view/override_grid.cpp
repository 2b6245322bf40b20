#include "app/view/override_grid.h"

#include "engine/base/index.h"
#include "engine/policy/option_table.h"

#include <algorithm>
#include <array>
#include <limits>

namespace keyhole {

namespace {

struct Box {
    int first_layer = 0, last_layer = 0, first_head = 0, last_head = 0;
};

/// Counts set cells in boxes of a grid, from sums over all boxes that begin in the corner.
class BoxSums {
  public:
    BoxSums(int n_layers, int n_heads, const std::vector<char>& set)
        : n_heads_(n_heads), sums_(to_index((n_layers + 1) * (n_heads + 1)), 0) {
        for (int l = 0; l < n_layers; ++l)
            for (int h = 0; h < n_heads; ++h)
                at(l + 1, h + 1) = at(l, h + 1) + at(l + 1, h) - at(l, h) + set[to_index(l * n_heads + h)];
    }
    int count(const Box& b) {
        return at(b.last_layer + 1, b.last_head + 1) - at(b.first_layer, b.last_head + 1) -
               at(b.last_layer + 1, b.first_head) + at(b.first_layer, b.first_head);
    }

  private:
    int n_heads_;
    std::vector<int> sums_;
    int& at(int l, int h) { return sums_[to_index(l * (n_heads_ + 1) + h)]; }
};

/// Returns the box within `allowed` that holds the most of `wanted`; among equal ones the largest, which has
/// the shortest name.
Box best_box(int n_layers, int n_heads, const std::vector<char>& allowed, const std::vector<char>& wanted) {
    BoxSums inside(n_layers, n_heads, allowed), gains(n_layers, n_heads, wanted);
    Box best;
    std::pair<int, int> best_gain{0, 0};
    for (int l0 = 0; l0 < n_layers; ++l0)
        for (int h0 = 0; h0 < n_heads; ++h0)
            for (int l1 = l0; l1 < n_layers; ++l1)
                for (int h1 = h0; h1 < n_heads; ++h1) {
                    const Box box{l0, l1, h0, h1};
                    const int area = (l1 - l0 + 1) * (h1 - h0 + 1);
                    if (inside.count(box) != area) break;  // then a wider one does not fit either
                    const std::pair<int, int> gain{gains.count(box), area};
                    if (gain > best_gain) best_gain = gain, best = box;
                }
    return best;
}

}  // namespace

std::string_view override_field_name(Override::Field field) {
    return lane_option(field).name;
}

OverrideValue own_value(const PolicyParams& params, Override::Field field) {
    switch (field) {
        case Override::Field::budget:
            return {params.budget, 0, {}, {}};
        case Override::Field::recent:
            return {params.recent, 0, {}, {}};
        case Override::Field::read:
            return {params.read, 0, {}, {}};
        case Override::Field::alpha:
            return {{}, params.alpha, {}, {}};
        case Override::Field::tau:
            return {{}, 0, params.tau, {}};
        case Override::Field::gain:
            return {{}, params.gain, {}, {}};
        case Override::Field::score:
            return {{}, 0, {}, params.score};
        case Override::Field::choose:
            return {{}, 0, {}, params.choose};
        case Override::Field::protect:
            return {{}, 0, {}, params.protect};
    }
    return {};
}

OverrideGrid::OverrideGrid(const PolicyParams& params, Override::Field field, HeadGrid heads)
    : field_(field),
      heads_(std::move(heads)),
      formulas_(Override::is_formula(field) ? params.formula_texts(field) : std::vector<std::string>()),
      scope_(resolve(params, 1, 1).scope),
      cells_(to_index(heads_.n_layers * heads_.n_heads)) {
    for (const Override& o : params.overrides) {
        if (o.field != field) continue;
        for (int l = 0; l < heads_.n_layers; ++l)
            for (int h = 0; h < heads_.n_heads; ++h)
                if (o.covers(l, h, heads_.kv_in_layer(l, h)))
                    cells_[index(l, h)] = OverrideValue{o.amount, o.value, o.tau, o.formula};
    }
}

int OverrideGrid::formula_index(int layer, int head) const {
    const std::optional<OverrideValue>& cell = at(layer, head);
    if (!cell) return 0;
    const auto found = std::find(formulas_.begin(), formulas_.end(), cell->formula.text);
    return static_cast<int>(found - formulas_.begin());
}

bool OverrideGrid::empty() const {
    return std::none_of(cells_.begin(), cells_.end(), [](const auto& cell) { return cell.has_value(); });
}

void OverrideGrid::paint(int first_layer, int last_layer, int first_head, int last_head,
                         const std::optional<OverrideValue>& value) {
    const auto unit = [&](int l, int h) {
        return scope_ == Scope::shared   ? 0
               : scope_ == Scope::layer  ? l
               : scope_ == Scope::column ? heads_.kv_in_layer(l, h)
                                         : heads_.kv_head[index(l, h)];
    };
    std::vector<int> units;
    for (int l = first_layer; l <= last_layer; ++l)
        for (int h = first_head; h <= last_head; ++h) units.push_back(unit(l, h));
    for (int l = 0; l < heads_.n_layers; ++l)
        for (int h = 0; h < heads_.n_heads; ++h)
            if (std::find(units.begin(), units.end(), unit(l, h)) != units.end()) cells_[index(l, h)] = value;
}

PolicyParams OverrideGrid::written(PolicyParams params) const {
    std::erase_if(params.overrides, [&](const Override& o) { return o.field == field_; });
    struct Value {
        OverrideValue value;
        int n_cells = 0;
    };
    std::vector<Value> values;
    for (const auto& cell : cells_) {
        if (!cell) continue;
        const auto found =
            std::find_if(values.begin(), values.end(), [&](const Value& v) { return v.value == *cell; });
        if (found == values.end())
            values.push_back({*cell, 1});
        else
            ++found->n_cells;
    }
    std::stable_sort(values.begin(), values.end(),
                     [](const Value& a, const Value& b) { return a.n_cells > b.n_cells; });

    std::vector<char> allowed(cells_.size()), wanted(cells_.size());
    for (std::size_t i = 0; i < cells_.size(); ++i) allowed[i] = cells_[i].has_value();
    for (const Value& v : values) {
        for (std::size_t i = 0; i < cells_.size(); ++i) wanted[i] = cells_[i] == v.value;
        while (std::find(wanted.begin(), wanted.end(), 1) != wanted.end()) {
            const Box box = best_box(heads_.n_layers, heads_.n_heads, allowed, wanted);
            Override o;
            o.field = field_;
            o.amount = v.value.amount;
            o.value = v.value.value;
            o.tau = v.value.tau;
            o.formula = v.value.formula;
            const bool all_heads = box.first_head == 0 && box.last_head == heads_.n_heads - 1;
            // An override names layers or heads. One for all heads and all layers names the layers.
            const bool all_layers =
                box.first_layer == 0 && box.last_layer == heads_.n_layers - 1 && !all_heads;
            if (!all_layers) o.first_layer = box.first_layer, o.last_layer = box.last_layer;
            if (!all_heads) o.first_head = box.first_head, o.last_head = box.last_head;
            params.overrides.push_back(o);
            for (int l = box.first_layer; l <= box.last_layer; ++l)
                for (int h = box.first_head; h <= box.last_head; ++h) wanted[index(l, h)] = 0;
        }
        // Settled cells may not be covered again.
        for (std::size_t i = 0; i < cells_.size(); ++i)
            if (cells_[i] == v.value) allowed[i] = 0;
    }
    return params;
}

double effective_value(const ResolvedPolicy& policy, Override::Field field, int layer, int head, int row) {
    const ResolvedPolicy& own = policy.at(layer, head);
    switch (field) {
        case Override::Field::budget:
            return own.budget == ResolvedPolicy::kUnlimited ? std::numeric_limits<double>::infinity()
                                                            : own.budget;
        case Override::Field::recent:
            return own.recent;
        case Override::Field::read:
            return own.reads_pages() ? own.read : std::numeric_limits<double>::infinity();
        case Override::Field::alpha:
            return double(own.alpha);
        case Override::Field::tau:
            return double(own.tau_at(row));
        case Override::Field::gain:
            return double(own.gain);
        case Override::Field::score:
        case Override::Field::choose:
        case Override::Field::protect:
            break;
    }
    return 0;
}

}  // namespace keyhole
