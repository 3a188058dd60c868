from turnwise.http.app import create_app as create_app
from turnwise.http.auth import (
    Auth as Auth,
    BearerTokens as BearerTokens,
    Identity as Identity,
)
from turnwise.http.problems import answer_errors as answer_errors
from turnwise.http.service import Service as Service
from turnwise.http.settings import HttpSettings as HttpSettings
