/// Mutations for LLVMFuzzerCustomMutator that keep the form of an input, so that the fuzzer gets past the
/// first checks. They change values of JSON texts by type, elements of NumPy arrays, and members of a list
/// (fuzz.h).
#pragma once

#include "engine/base/index.h"
#include "tests/fuzz/fuzz.h"

#include <nlohmann/json.hpp>

#include <array>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace keyhole {

class Mutator {
  public:
    /// texts: strings that the format knows, such as lane specs.
    Mutator(unsigned seed, std::vector<std::string> texts) : random_(seed), texts_(std::move(texts)) {}

    std::size_t below(std::size_t n) { return n == 0 ? 0 : random_() % n; }
    bool one_of(std::size_t n) { return below(n) == 0; }

    /// Changes one to four values. Returns text that is not JSON unchanged.
    std::string json(std::string_view text) {
        nlohmann::json root = nlohmann::json::parse(text, nullptr, false);
        if (root.is_discarded()) return std::string(text);
        for (std::size_t i = 0, n = 1 + below(4); i < n; ++i) change(place_in(root), root);
        return dumped(root);
    }

    /// Mutates a .npy array: one digit of its shape, or some of its elements.
    std::string npy(std::string_view bytes) {
        std::string out(bytes);
        const std::size_t n_header = out.size() < 10 ? out.size()
                                                     : 10 + static_cast<unsigned char>(out[8]) +
                                                           256u * static_cast<unsigned char>(out[9]);
        if (one_of(4) && n_header < out.size()) {
            const std::size_t at = out.find_first_of("0123456789", out.find("shape"));
            if (at < n_header) out[at] = static_cast<char>('0' + below(10));
            return out;
        }
        elements(out, std::min(n_header, out.size()));
        return out;
    }

    /// Replaces elements of two, four or eight bytes, from offset `first` on, by other numbers.
    void elements(std::string& bytes, std::size_t first) {
        for (std::size_t i = 0, n = 1 + below(4); i < n; ++i) {
            const std::size_t width = std::array<std::size_t, 4>{2, 4, 4, 8}[below(4)];
            if (bytes.size() < first + width) return;
            const std::size_t at = first + width * below((bytes.size() - first) / width);
            const std::int64_t value = number();
            std::memcpy(bytes.data() + at, &value, width);
        }
    }

    /// Repeats, exchanges, renames or removes a member.
    void members(std::vector<std::pair<std::string, std::string>>& list) {
        if (list.empty()) return;
        const std::size_t a = below(list.size()), b = below(list.size());
        switch (below(4)) {
            case 0:
                list.erase(list.begin() + static_cast<std::ptrdiff_t>(a));
                return;
            case 1:
                list.insert(list.begin() + static_cast<std::ptrdiff_t>(b), list[a]);
                return;
            case 2:
                std::swap(list[a].second, list[b].second);
                return;
            default:
                list[a].first = list[b].first;
        }
    }

  private:
    using Json = nlohmann::json;

    /// Texts may no longer be UTF-8 after a mutation.
    static std::string dumped(const Json& value) {
        return value.dump(-1, ' ', false, Json::error_handler_t::replace);
    }

    std::int64_t number() {
        constexpr std::array<std::int64_t, 24> kNumbers = {-1,
                                                           0,
                                                           1,
                                                           2,
                                                           3,
                                                           7,
                                                           15,
                                                           16,
                                                           17,
                                                           255,
                                                           1 << 10,
                                                           1 << 16,
                                                           1 << 20,
                                                           1 << 28,
                                                           1 << 30,
                                                           INT_MAX,
                                                           INT_MIN,
                                                           0x7fc00000,
                                                           0x7c00,
                                                           0xfc00,
                                                           std::int64_t{1} << 32,
                                                           std::int64_t{1} << 53,
                                                           INT64_MAX,
                                                           INT64_MIN};
        return one_of(3) ? static_cast<std::int64_t>(below(40)) : kNumbers[below(kNumbers.size())];
    }

    /// Descends from the root, so that a list of thousands is no likelier than a flag.
    Json& place_in(Json& root) {
        Json* at = &root;
        while (at->is_structured() && !at->empty() && !one_of(5)) {
            auto it = at->begin();
            std::advance(it, static_cast<std::ptrdiff_t>(below(at->size())));
            at = &*it;
        }
        return *at;
    }

    Json other_value() {
        constexpr std::array kReals = {0.5, -1.0, 1e308, -1e308, 1e-320, 3e38};
        switch (below(8)) {
            case 0:
                return nullptr;
            case 1:
                return one_of(2);
            case 2:
                return texts_.empty() ? "inf" : texts_[below(texts_.size())];
            case 3:
                return kReals[below(kReals.size())];
            case 4:
                return Json::array();
            case 5:
                return Json::object();
            default:
                return number();
        }
    }

    void change(Json& value, Json& root) {
        if (one_of(8)) {
            value = other_value();
        } else if (one_of(8)) {
            const Json copy = place_in(root);
            if (dumped(copy).size() < 4096) value = copy;
        } else if (value.is_array() && !value.empty()) {
            const auto at = static_cast<std::ptrdiff_t>(below(value.size()));
            const Json element = value[keyhole::to_index(at)];
            if (one_of(2))
                value.erase(value.begin() + at);
            else
                value.insert(value.begin() + static_cast<std::ptrdiff_t>(below(value.size())), element);
        } else if (value.is_object() && !value.empty()) {
            auto it = value.begin();
            std::advance(it, static_cast<std::ptrdiff_t>(below(value.size())));
            value.erase(it);
        } else if (value.is_string()) {
            std::string text = value.get<std::string>();
            if (one_of(3) && !texts_.empty())
                text = texts_[below(texts_.size())];
            else if (one_of(3))
                text += text;
            else if (!text.empty())
                text[below(text.size())] = static_cast<char>(below(128));
            value = text;
        } else if (value.is_boolean()) {
            value = !value.get<bool>();
        } else if (value.is_number_integer()) {
            value = one_of(3) ? value.get<std::int64_t>() / 2 + 1 : number();
        } else {
            value = other_value();
        }
    }

    std::mt19937 random_;
    std::vector<std::string> texts_;
};

/// Copies a mutated input into `data`. If it is too long, libFuzzer mutates the old input instead.
inline std::size_t put_input(const std::string& input, std::uint8_t* data, std::size_t size,
                             std::size_t max_size) {
    if (input.empty() || input.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
    std::memcpy(data, input.data(), input.size());
    return input.size();
}

/// Mutates a JSON text, or any byte of it. texts: strings that its fields may hold.
inline std::size_t mutate_text(std::uint8_t* data, std::size_t size, std::size_t max_size, unsigned seed,
                               std::vector<std::string> texts) {
    Mutator mutator(seed, std::move(texts));
    if (mutator.one_of(6)) return LLVMFuzzerMutate(data, size, max_size);
    return put_input(mutator.json(text_of(data, size)), data, size, max_size);
}

/// Mutates a list of members: one member by change(mutator, name, bytes), or the list itself, or any byte.
template <class Change>
std::size_t mutate_members(std::uint8_t* data, std::size_t size, std::size_t max_size, Mutator& mutator,
                           Change change) {
    std::vector<std::pair<std::string, std::string>> members;
    for (const Member& member : members_of(text_of(data, size)))
        members.emplace_back(member.name, std::string(member.bytes));
    if (members.empty() || mutator.one_of(10)) return LLVMFuzzerMutate(data, size, max_size);
    if (mutator.one_of(12)) {
        mutator.members(members);
    } else {
        auto& [name, bytes] = members[mutator.one_of(2) ? 0 : mutator.below(members.size())];
        bytes = change(name, bytes);
    }
    return put_input(text_of_members(members), data, size, max_size);
}

/// Lane specs and other strings that a run may hold.
inline std::vector<std::string> run_texts() {
    return {"full",
            "h2o:budget=3",
            "h2o:budget=4,shadow=on",
            "tova:budget=2",
            "sink:budget=5,sinks=2",
            "dilated:budget=3",
            "full:kv=mqa",
            "keyformer:budget=5,tau=(0:1 20:1.4),alpha@L0-1.H0=0.5",
            "a2sf:alpha=0.2,prefill=stepwise",
            "h2o:horizon=2147483647",
            "inf",
            "-inf",
            "keyhole-trace",
            "e282ac",
            "\x1b[31m",
            std::string(300, 'x')};
}

}  // namespace keyhole
