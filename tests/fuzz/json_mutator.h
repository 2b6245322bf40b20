/// Mutations for fuzz targets whose input is JSON, or a list of members (fuzz.h) of which some are JSON. They
/// keep the syntax and change the values, so that the fuzzer gets past the parser. A target uses them like
/// this:
///
///     extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most,
///                                                    unsigned seed) {
///         return keyhole::mutate_json(data, size, most, seed);
///     }
///
/// Include this header in only one file of a target.
#pragma once

#include "engine/base/json_text.h"

#include "tests/fuzz/fuzz.h"

#include <nlohmann/json.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// libFuzzer's own byte mutation.
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

namespace keyhole {

/// Mutates JSON values. Members keep their order; names may repeat.
class JsonMutator {
  public:
    using Json = nlohmann::ordered_json;

    explicit JsonMutator(unsigned seed) : random_(seed) {}

    /// Returns the text with one to four changes. Returns "" when it is not JSON of at most 100 levels.
    std::string mutated(std::string_view text) {
        if (!is_shallow_json(text)) return {};
        Json root = Json::parse(text, nullptr, false);
        if (root.is_discarded()) return {};
        const std::size_t n_changes = 1 + below(4);
        for (std::size_t i = 0; i < n_changes; ++i) change(root);
        return written(root);
    }

    /// Returns a random number in [0, n]; n > 0.
    std::size_t below(std::size_t n) { return random_() % n; }

    /// Returns the bytes after libFuzzer's mutation, at most `most`.
    std::string mutated_bytes(std::string_view bytes, std::size_t most) {
        std::string out(bytes.substr(0, most));
        const std::size_t size = out.size();
        out.resize(std::max<std::size_t>(most, 1));
        out.resize(LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(out.data()), size, out.size()));
        return out;
    }

  private:
    /// Collects every value of the tree, the root first.
    static void list(Json& value, std::vector<Json*>& values) {
        values.push_back(&value);
        for (Json& child : value) {
            if (value.is_structured()) list(child, values);
        }
    }

    static Json::object_t& members(Json& object) { return object.get_ref<Json::object_t&>(); }

    void change(Json& root) {
        std::vector<Json*> values;
        list(root, values);
        Json& value = *values[below(values.size())];
        Json& other = *values[below(values.size())];
        switch (below(10)) {
            case 0:
                value = any_value();
                return;
            case 1:
            case 2:
                return change_in_type(value);
            case 3:
                value = Json(other);  // copies first: one value may lie inside the other
                return;
            case 4:
                if (!contains(value, &other) && !contains(other, &value)) std::swap(value, other);
                return;
            case 5:
            case 6:
                return change_members(value);
            case 7:
                return nest(value);
            case 8:
                return change_elements(value);
            default:
                if (value.is_string())
                    value = mutated_bytes(value.get_ref<const std::string&>(), 64);
                else
                    value = any_value();
                return;
        }
    }

    /// Returns whether the value is in the tree.
    static bool contains(Json& tree, const Json* value) {
        std::vector<Json*> values;
        list(tree, values);
        return std::find(values.begin(), values.end(), value) != values.end();
    }

    Json any_number() {
        switch (below(4)) {
            case 0:
                return static_cast<std::int64_t>(below(300)) - 20;
            case 1: {
                static constexpr std::array<std::uint64_t, 14> kWhole = {
                    1u << 7,      1u << 8,
                    1u << 16,     1u << 20,
                    1u << 22,     (1u << 24) + 1,
                    1u << 30,     0x7fffffffu,
                    0x80000000u,  0xffffffffu,
                    0x100000000u, 1ull << 53,
                    1ull << 63,   std::numeric_limits<std::uint64_t>::max()};
                return kWhole[below(kWhole.size())];
            }
            case 2: {
                static constexpr std::array<std::int64_t, 5> kNegative = {
                    -1, -2, -0x80000000ll, -0x80000001ll, std::numeric_limits<std::int64_t>::min()};
                return kNegative[below(kNegative.size())];
            }
            default: {
                static constexpr std::array<double, 9> kReal = {0.0,    -0.0,  0.5,    1.5,         1e-45,
                                                                1e-320, 1e308, -1e308, 3.4028236e38};
                return kReal[below(kReal.size())];
            }
        }
    }

    Json any_text() {
        static const std::vector<std::string> texts = {
            "",
            " ",
            "a",
            ".",
            "..",
            "../x",
            "/dev/zero",
            std::string("a\0b", 3),
            "\x1b[31mred\x1b[0m",
            "\x1b]0;title\x07",
            "two\nlines",
            "\xc2\x9b",
            "\xff\xfe",
            "\xe4\xbd",
            "\xed\xa0\x80",
            "\xe2\x80\xae",
            "\xe2\x96\x81",
            "\xc4\xa0",
            "nan",
            "1e999",
            std::string(300, 'a'),
            std::string(3000, '<'),
        };
        return texts[below(texts.size())];
    }

    Json any_value() {
        switch (below(8)) {
            case 0:
                return nullptr;
            case 1:
                return below(2) == 0;
            case 2:
                return Json::array();
            case 3:
                return Json::object();
            case 4:
            case 5:
                return any_text();
            default:
                return any_number();
        }
    }

    void change_in_type(Json& value) {
        if (value.is_boolean()) {
            value = !value.get<bool>();
        } else if (value.is_number_integer() && below(2) == 0) {
            // Neighbours of a valid value find checks that are off by one.
            const std::uint64_t near = value.get<std::uint64_t>() + below(5) - 2;
            value = near;
        } else if (value.is_number()) {
            value = any_number();
        } else if (value.is_string()) {
            value = any_text();
        } else if (value.is_structured()) {
            value = value.is_array() ? Json::object() : Json::array();
        } else {
            value = any_value();
        }
    }

    void change_members(Json& value) {
        if (!value.is_object() || value.empty()) return change_in_type(value);
        Json::object_t& all = members(value);
        // Keys are const, so a changed list is rebuilt.
        std::vector<std::pair<std::string, Json>> list(all.begin(), all.end());
        const std::size_t i = below(list.size()), j = below(list.size());
        switch (below(6)) {
            case 0:
                list.erase(list.begin() + static_cast<std::ptrdiff_t>(i));
                break;
            case 1:
                std::swap(list[i].first, list[j].first);
                break;
            case 2:
                list.emplace_back(list[i].first, any_value());  // repeats a member
                break;
            case 3:
                list[i].first = list[j].first;  // gives two members the same name
                break;
            case 4:
                list[i].first = mutated_bytes(list[i].first, 40);
                break;
            default:
                list.emplace_back(any_text().get<std::string>(), list[j].second);
                break;
        }
        Json::object_t changed;
        for (const auto& [key, member] : list)
            static_cast<std::vector<std::pair<const std::string, Json>>&>(changed).push_back({key, member});
        all.swap(changed);
    }

    void change_elements(Json& value) {
        if (!value.is_array() || value.empty()) return change_members(value);
        const std::size_t i = below(value.size());
        const auto at = value.begin() + static_cast<std::ptrdiff_t>(i);
        switch (below(4)) {
            case 0:
                value.erase(at);
                break;
            case 1: {
                static constexpr std::array<std::size_t, 5> kTimes = {1, 2, 10, 100, 1000};
                const Json element = *at;
                const std::size_t times = kTimes[below(kTimes.size())];
                if (element.size() < 20)
                    for (std::size_t n = 0; n < times; ++n) value.push_back(element);
                break;
            }
            case 2:
                value.insert(at, any_value());
                break;
            default:
                std::swap(value[i], value[below(value.size())]);
                break;
        }
    }

    void nest(Json& value) {
        static constexpr std::array<int, 5> kLevels = {1, 2, 50, 99, 200};
        const int levels = kLevels[below(kLevels.size())];
        const bool in_lists = below(2) == 0;
        for (int i = 0; i < levels; ++i) {
            Json outer = in_lists ? Json::array() : Json::object();
            if (in_lists)
                outer.push_back(std::move(value));
            else
                outer["type"] = std::move(value);
            value = std::move(outer);
        }
    }

    /// Guards against the library's writer, which refuses text that is not UTF-8.
    static void write_text(std::string_view text, std::string& out) {
        out += '"';
        for (const char c : text) {
            if (c == '"' || c == '\\') {
                out += {'\\', c};
            } else if (static_cast<unsigned char>(c) < 0x20) {
                out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
            } else {
                out += c;
            }
        }
        out += '"';
    }

    static void write(const Json& value, std::string& out) {
        if (value.is_string()) return write_text(value.get_ref<const std::string&>(), out);
        if (!value.is_structured()) {
            out += value.dump();
            return;
        }
        out += value.is_array() ? '[' : '{';
        bool first = true;
        for (auto it = value.begin(); it != value.end(); ++it) {
            if (!std::exchange(first, false)) out += ',';
            if (value.is_object()) {
                write_text(it.key(), out);
                out += ':';
            }
            write(*it, out);
        }
        out += value.is_array() ? ']' : '}';
    }

    static std::string written(const Json& value) {
        std::string out;
        write(value, out);
        return out;
    }

    std::mt19937 random_;
};

/// Copies the text over the input and returns its size. If the text is empty or too long, mutates the input's
/// bytes instead.
inline std::size_t replace_input(std::uint8_t* data, std::size_t size, std::size_t most,
                                 const std::string& text) {
    if (text.empty() || text.size() > most) return LLVMFuzzerMutate(data, size, most);
    std::memcpy(data, text.data(), text.size());
    return text.size();
}

/// Mutates an input that is one JSON text. One mutation in sixteen changes raw bytes.
inline std::size_t mutate_json(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
    JsonMutator mutator(seed);
    if (mutator.below(16) == 0) return LLVMFuzzerMutate(data, size, most);
    return replace_input(data, size, most, mutator.mutated(text_of(data, size)));
}

/// Mutates the header of a safetensors file as JSON and corrects its length field. Returns false when it is
/// no such file.
inline bool mutate_safetensors(std::string& bytes, JsonMutator& mutator) {
    std::uint64_t length = 0;
    if (bytes.size() < sizeof length) return false;
    std::memcpy(&length, bytes.data(), sizeof length);
    if (length > bytes.size() - sizeof length) return false;
    const std::string header = mutator.mutated(std::string_view(bytes).substr(sizeof length, length));
    if (header.empty()) return false;
    const std::string data = bytes.substr(sizeof length + length);
    length = header.size();
    bytes.assign(reinterpret_cast<const char*>(&length), sizeof length);
    bytes += header + data;
    return true;
}

/// Changes the bytes of a member that is neither JSON nor text. Returns false when it does not know the
/// member.
using ChangeMember = std::function<bool(const std::string& name, std::string& bytes, JsonMutator& mutator)>;

/// Mutates an input that is a list of members. Changes one member, as JSON where it is JSON. Sometimes
/// removes or repeats a member, or gives it the bytes or the name of another.
inline std::size_t mutate_members(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed,
                                  const ChangeMember& change = {}) {
    JsonMutator mutator(seed);
    if (mutator.below(32) == 0) return LLVMFuzzerMutate(data, size, most);
    std::vector<std::pair<std::string, std::string>> members;
    for (const Member& member : members_of(text_of(data, size)))
        members.emplace_back(member.name, std::string(member.bytes));
    if (members.empty()) return LLVMFuzzerMutate(data, size, most);
    const std::size_t i = mutator.below(members.size()), j = mutator.below(members.size());
    auto& [name, bytes] = members[i];
    switch (mutator.below(24)) {
        case 0:
            members.erase(members.begin() + static_cast<std::ptrdiff_t>(i));
            break;
        case 1:
            members.push_back(members[i]);
            break;
        case 2:
            bytes = std::string(members[j].second);
            break;
        case 3:
            name = std::string(members[j].first);
            break;
        default:
            if (change && change(name, bytes, mutator)) break;
            if (std::string changed = mutator.mutated(bytes); !changed.empty())
                bytes = std::move(changed);
            else
                bytes = mutator.mutated_bytes(bytes, bytes.size() + 100);
            break;
    }
    return replace_input(data, size, most, text_of_members(members));
}

}  // namespace keyhole
