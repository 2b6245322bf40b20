// The one instantiation of JSON's class; precompiled headers declare it `extern` (.cmake/folders.cmake).
#include <nlohmann/json.hpp>

template class nlohmann::basic_json<>;
